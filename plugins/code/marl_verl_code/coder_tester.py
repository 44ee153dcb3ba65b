"""Workflow `coder-tester`: a coder writes a program, a unit tester writes tests for it, and both see where they differ.

Source: AT-GRPO, arXiv 2510.11062: up to 5 turns, until the program passes all tests of the tester. Role rewards:

    code-coder    2 * share of the task's tests that the program of this act passes
    code-tester   share of the tester's tests that the reference solution passes, + the share of the task's tests that
                  the coder's program of the same turn passes

Of the task's tests, the first 4 count, public ones first. Without a reference solution the first term of the tester is
0; an act without tests keeps that of the act before. The tester's tests are a JSON list in one block, {"input",
"output"} or {"args", "expected"}, or blocks after "Test Input:" and "Test Output:". The prompts are our own.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl_sandbox import Outcome, program_in

from marl_verl import Episode, Task, Team, Turn, Workflow
from marl_verl.options import Positive
from marl_verl_code.code_tests import STREAMS, all_tests, has, run_tests
from marl_verl_code.refine_code import entry_of, how

CODER, TESTER = "coder", "tester"
MOST = 8
"""Number of a tester's tests that count; more are ignored."""
REWARD_TESTS = 4
_PYTHON = re.compile(r"```python3?[^\S\n]*\n?(.*?)```", re.DOTALL | re.IGNORECASE)
_BLOCK = r":?(?:\*\*)?:?\s*```(?:(?:text|txt|plaintext|python|json|input|output)?[^\S\n]*\n)?(.*?)```"
_INPUT, _OUTPUT = (re.compile(f"Test {word}{_BLOCK}", re.DOTALL) for word in ("Input", "Output"))


class CoderTester(Workflow):
    """In each turn the coder writes a program, and the tester, which does not see it, writes tests.

    Options:
        turns: maximum number of turns; the episode ends earlier if the program passes the tester's tests.
    """

    turns: Positive = 5

    async def run(self, task: Task, team: Team) -> str:
        program, before, failed = "", None, list[dict[str, Any]]()

        async def code() -> str:
            action = await team[CODER].act(self.sees(task, CODER, before, failed), slot=CODER)
            if not (program := python_in(action.text)):
                team.invalid(action, "no python block")
            team.propose(program)  # scored before the tester has acted
            return program

        async def test() -> list[dict[str, Any]]:
            action = await team[TESTER].act(self.sees(task, TESTER, before, failed), slot=TESTER)
            if not (tests := written(action.text, entry_of(task))):
                team.invalid(action, "no tests")
            return tests

        for _ in range(self.turns):
            program, tests = await asyncio.gather(code(), test())
            team.propose(program)
            failed = await team.call(failures, program, tests)
            if program and tests and not failed:
                break
            before = program
        return program

    def sees(self, task: Task, agent: str, before: str | None, failed: list[dict[str, Any]]) -> str:
        """An agent's observation. `before`: the program of the turn before, empty if there was none in the answer, None
        in the first turn; `failed`: the tests of that turn that it failed."""
        lines = [f"{task.prompt}\n"]
        if before is not None:
            shown = "\n".join(json.dumps(test) for test in failed[:3]) or "there is no program, or there are no tests"
            lines += [f"The program before:\n```python\n{before}\n```"]
            lines += [f"Tests that it failed, which may be wrong:\n{shown}\n"]
        form = '[{"input": "...", "output": "..."}]'
        if (entry := entry_of(task)) is not None:
            form = f'[{{"args": [...], "expected": ...}}], calls of {entry} and what it returns'
        ask = f"Write up to {MOST} tests of a program for this problem, as a JSON list in one ```json block: {form}."
        return "\n".join([*lines, how(task) if agent == CODER else ask])


def python_in(text: str) -> str:
    """The last python block of a coder's text; empty without one."""
    blocks = _PYTHON.findall(text)
    return str(blocks[-1]).strip() if blocks else ""


def written(text: str, entry: str | None = None) -> list[dict[str, Any]]:
    """The tests of a tester's text, without those of another form. `entry`: the function that they call; None for tests
    on standard input and output."""
    blocks = list(zip(_INPUT.findall(text), _OUTPUT.findall(text), strict=False))
    if blocks and entry is None:
        return [{"input": shown.strip(), "output": expected.strip()} for shown, expected in blocks[:MOST]]
    try:
        listed = json.loads(program_in(text))
    except (ValueError, RecursionError):
        return []
    form: Mapping[str, type] = STREAMS if entry is None else {"args": list, "expected": object}
    tests = [item for item in listed if has(item, form)] if isinstance(listed, list) else []
    called = {} if entry is None else {"entry": entry}
    return [{**called, **{name: test[name] for name in form}} for test in tests[:MOST]]


async def failures(program: str, tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tests that a program does not pass, each with what it printed or returned."""
    if not program:
        return list(tests)
    outcomes = await run_tests(program, tests)
    both = zip(tests, outcomes, strict=True)
    return [{**test, "printed": outcome.output[:200]} for test, outcome in both if not _passed(outcome)]


async def pass_rate(program: str, tests: Sequence[Any]) -> float:
    """Share of tests that a program passes; 0 without a program or tests."""
    outcomes = await run_tests(program, tests)
    return sum(map(_passed, outcomes)) / len(outcomes) if outcomes else 0.0


def _passed(outcome: Outcome) -> bool:
    """As in the authors' code, an output that begins with "error:" passes no test."""
    return outcome.passed and not outcome.output.startswith("error:")


async def coder_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `code-coder`, 0 to 2."""
    return 2 * await pass_rate(python_in(turn.action.text), _counted(task))


async def tester_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `code-tester`, 0 to 2."""
    acts = [*(past for past in episode.turns if past.agent == turn.agent and past.turn < turn.turn), turn]
    own = [tests for act in acts if (tests := written(act.action.text, entry_of(task)))]
    solution = task.data.get("solution")
    first = await pass_rate(solution, own[-1]) if isinstance(solution, str) and own else 0.0
    programs = [past for past in episode.turns if past.agent == CODER and past.turn == turn.turn]
    return first + (await pass_rate(python_in(programs[-1].action.text), _counted(task)) if programs else 0.0)


def _counted(task: Task) -> list[Any]:
    return [{**test, "numbers": False} for test in all_tests(task)[:REWARD_TESTS]]  # by words, as in the authors' code
