"""A designer, a coder and a tester write a small program: the coder sees the design only, the tester the task only."""

import asyncio

from marl_verl_code.coder_tester import entry_of, failures, python_in, written
from marl_verl_code.small_programs import SIGNS, SmallPrograms, fenced

from marl_verl import Workflow, hookimpl
from marl_verl.options import Positive


class DesignCodeTest(Workflow):
    """The designer writes a design. From it the coder writes a program, while the tester writes tests. The coder sees
    the first test that its program fails, and writes it again.

    Options:
        rounds: maximum number of programs.
    """

    rounds: Positive = 2

    async def run(self, task, team):
        design = (await team["designer"].act(task.prompt)).text.strip() or "nothing"

        async def code(seen):
            action = await team["coder"].act(seen)
            if not (program := python_in(action.text)):
                team.invalid(action, "no python block")
            team.propose(program)
            return program

        async def test():
            action = await team["tester"].act(task.prompt)
            if not (tests := written(action.text, entry_of(task))):
                team.invalid(action, "no tests")
            return tests

        program, tests = await asyncio.gather(code(design), test())
        for _ in range(self.rounds - 1):
            failed = await team.call(failures, program, tests)
            if not failed:
                break
            program = await code(f"{design} failed {failed[0]['input'].strip()[:8]}")
        return program


class DesignedPrograms(SmallPrograms):
    """`small-programs`, scored by the task's own tests; in careless demonstrations a sign or a test is wrong."""

    agents = ("designer", "coder", "tester")

    def vocabulary(self):
        return [*super().vocabulary(), "nothing"]

    def _demonstration(self, agent, task, rng, good):
        if agent == "tester":
            return task.prompt, super()._demonstration(agent, task, rng, good)[1]
        word, number = task.prompt.split()
        wrong = rng.choice([sign for sign in SIGNS.values() if sign != SIGNS[word]])
        sign = SIGNS[word] if rng.random() < good else wrong
        if agent == "designer":
            return task.prompt, f"{sign} {number}"
        failed = f" failed {int(word == 'times')}" if rng.random() < 0.3 else ""
        return f"{SIGNS[word]} {number}{failed}", fenced("python", f"print(int(input()) {sign} {number})")


@hookimpl
def marl_register(registry):
    registry.task("designed-programs", DesignedPrograms)
    registry.workflow("design-code-test", DesignCodeTest)
