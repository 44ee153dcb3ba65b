"""Workflow `coder-tester`: a coder writes a program, a unit tester writes tests for it, and both see where they differ.

Source: AT-GRPO, arXiv 2510.11062: up to 5 turns, until the program passes all tests of the tester. Role rewards:

    code-coder    2 * share of the task's tests that the program of this act passes
    code-tester   share of the tester's tests that the reference solution passes, + the share of the task's tests that
                  the coder's program before it passes

The wording of the prompts is our own. A team's answer is the coder's last program; the tester's tests are of the form
{"input", "output"}, as a JSON list in one block.
"""

from __future__ import annotations

import json
from typing import Any

from marl_verl import MarlError, Task, Workflow
from marl_verl.episode import Episode, Team, Turn
from marl_verl.sandbox import Limits
from marl_verl_code.code_tests import run_tests, tests_of
from marl_verl_code.refine_code import how, program_in

CODER, TESTER = "coder", "tester"
MOST = 8
"""Number of a tester's tests that count; more are ignored."""
SECONDS, MEGABYTES = 6.0, 1024


class CoderTester(Workflow):
    """In each turn the coder writes a program, and the tester, which does not see it, writes tests.

    Options:
        turns: maximum number of turns; the episode ends earlier if the program passes the tester's tests.
        seconds, megabytes: limits of one test.
    """

    turns: int = 5
    seconds: float = SECONDS
    megabytes: int = MEGABYTES

    def __post_init__(self) -> None:
        if self.turns < 1:
            raise MarlError(f"coder-tester: turns must be 1 or more, got {self.turns}")
        Limits(self.seconds, self.megabytes)

    async def run(self, task: Task, team: Team) -> str:
        """Return the coder's last program."""
        if "input" not in tests_of(task, "private")[0]:
            raise MarlError(f"coder-tester needs tests on standard input and output, task '{task.id}' has others")
        program, before, failed = "", None, list[dict[str, str]]()
        for _ in range(self.turns):
            acted = await team.act({agent: self.sees(task, agent, before, failed) for agent in (CODER, TESTER)})
            program, tests = program_in(acted[CODER].text), written(acted[TESTER].text)
            if not program:
                team.invalid(acted[CODER], "no code block")
            if not tests:
                team.invalid(acted[TESTER], "no tests")
            team.propose(program)
            failed = await team.call(failures, program, tests, self.seconds, self.megabytes)
            if program and tests and not failed:
                break
            before = program
        return program

    def sees(self, task: Task, agent: str, before: str | None, failed: list[dict[str, str]]) -> str:
        """An agent's observation.

        Args:
            before: program of the turn before, empty if there was none in the answer; None in the first turn.
            failed: the tests of the turn before that it failed.
        """
        lines = [f"{task.prompt}\n"]
        if before is not None:
            shown = "\n".join(json.dumps(each) for each in failed[:3]) or "there is no program, or there are no tests"
            lines += [f"The program before:\n```python\n{before}\n```"]
            lines += [f"Tests that it failed, which may be wrong:\n{shown}\n"]
        ask = f"Write up to {MOST} tests of a program for this problem, as a JSON list in one ```json block: "
        ask += '[{"input": "...", "output": "..."}].'
        return "\n".join([*lines, how(task) if agent == CODER else ask])


def written(text: str) -> list[dict[str, str]]:
    """The tests in the last block of a tester's text, without those of another form; empty without a JSON list."""
    try:
        found = json.loads(program_in(text))
    except (ValueError, RecursionError):
        return []
    pairs = found if isinstance(found, list) else []
    right = [each for each in pairs if isinstance(each, dict) and {"input", "output"} <= set(each)]
    texts = [each for each in right if isinstance(each["input"], str) and isinstance(each["output"], str)]
    return [{"input": each["input"], "output": each["output"]} for each in texts[:MOST]]


async def failures(program: str, tests: list[dict[str, str]], seconds: float, megabytes: int) -> list[dict[str, str]]:
    """The tests that a program does not pass, each with what it printed."""
    if not program:
        return list(tests)
    outcomes = await run_tests(program, tests, Limits(seconds, megabytes))
    both = zip(tests, outcomes, strict=True)
    return [{**test, "printed": outcome.output[:200]} for test, outcome in both if not outcome.passed]


async def pass_rate(program: str, tests: Any) -> float:
    """Share of tests that a program passes; 0 without a program or tests."""
    if not program or not tests:
        return 0.0
    outcomes = await run_tests(program, tests, Limits(SECONDS, MEGABYTES))
    return sum(each.passed for each in outcomes) / len(outcomes)


async def coder_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `code-coder`, 0 to 2."""
    return 2 * await pass_rate(program_in(turn.action.text), _all(task))


async def tester_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `code-tester`, 0 to 2. MarlError for a task without a reference solution (`data.solution`)."""
    solution = task.data.get("solution")
    if not isinstance(solution, str) or not solution.strip():
        raise MarlError(f"task '{task.id}' has no text 'solution' in its data, which role reward code-tester needs")
    own = await pass_rate(solution, written(turn.action.text))
    programs = [each for each in episode.turns if each.agent == CODER and each.turn == turn.turn]
    return own + (await pass_rate(program_in(programs[-1].action.text), _all(task)) if programs else 0.0)


def _all(task: Task) -> list[Any]:
    return [*tests_of(task, "public"), *tests_of(task, "private")]
