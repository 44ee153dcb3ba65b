"""Workflow `refine-code`: a program for a problem with tests, refined with the first failing public test.

Programs are those of `code-with-tests`. Public tests run as a recorded call, so that a replay, and every refinement of
the same attempt, reads their result from the journal.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from marl_verl_datasets import clipped
from marl_verl_sandbox import Outcome, program_in

from marl_verl import Task, Team, Workflow
from marl_verl_code.code_tests import LIMITS, first_failing, in_thread, tests_of


class Feedback(NamedTuple):
    """Feedback of public tests on an attempt."""

    passed: bool  # whether all pass
    text: str  # for the agent that refines
    invalid: str | None = None  # why the attempt could not be tested


class GenerateAndRefine(Workflow):
    """An attempt and up to `rounds` refinements. The answer is the last attempt: a node's reward is its own.

    Options:
        rounds: maximum number of refinements; the depth of the tree is one more.
    """

    rounds: int = 3

    async def run(self, task: Task, team: Team) -> str:
        answer, seen = "", self.first(task)
        for turn in range(self.rounds + 1):
            action = await team[team.agents[turn % len(team.agents)]].act(seen)
            answer = self.answer_of(action.text)
            team.propose(answer)
            feedback = await self.feedback(task, answer, team)
            if feedback.invalid is not None:
                team.invalid(action, feedback.invalid)
            if feedback.passed:
                break
            seen = self.again(task, answer, feedback)
        return answer

    def first(self, task: Task) -> Any:
        return task.prompt

    @abstractmethod
    def again(self, task: Task, answer: str, feedback: Feedback) -> Any: ...

    def answer_of(self, text: str) -> str:
        return text

    @abstractmethod
    async def feedback(self, task: Task, answer: str, team: Team) -> Feedback:
        """Feedback of the public tests."""


LONGEST = 1000  # characters of an input, an output or an error that feedback shows: the middle of a longer one is cut
HOW = (
    "Write a Python program that reads from standard input and writes to standard output. "
    "Put the whole program in one ```python block."
)


class RefineCode(GenerateAndRefine):
    """Programs that must pass tests."""

    def first(self, task: Task) -> str:
        return f"{task.prompt}\n\n{how(task)}"

    def again(self, task: Task, answer: str, feedback: Feedback) -> str:
        attempt = f"```python\n{answer}\n```" if answer else "(no program)"
        return (
            f"{task.prompt}\n\nAn attempt at this problem:\n\n{attempt}\n\n"
            f"What the tests say of it:\n\n{feedback.text}\n\nFind what is wrong and solve the problem. {how(task)}"
        )

    def answer_of(self, text: str) -> str:
        return program_in(text)

    async def feedback(self, task: Task, answer: str, team: Team) -> Feedback:
        if not answer:
            return Feedback(False, "There is no program: no block between ``` and ``` was found.", "no code block")
        tests = [dict(test) for test in tests_of(task, "public")]
        failure = await team.call(first_failure, answer, tests)
        if failure is None:
            return Feedback(True, "All public tests pass.")
        number, outcome = failure
        return Feedback(False, in_words(tests[number], Outcome(**outcome), number))


def how(task: Task) -> str:
    """The form of an answer: a program, or a function for tests that call one."""
    entry = entry_of(task)
    if entry is None:
        return HOW
    name, _, method = entry.partition(".")
    asked = f"class `{name}` with its method `{method}`" if method else f"function `{name}`"
    return f"Write the Python {asked}. Put the whole code in one ```python block."


def entry_of(task: Task) -> str | None:
    """The function that the task's tests call; None for tests on standard input and output."""
    entry = tests_of(task, "private")[0].get("entry")
    return None if entry is None else str(entry)


async def first_failure(code: str, tests: list[Any]) -> tuple[int, Outcome] | None:
    """(number, outcome) of the first test that does not pass; None where all pass."""
    failing = await in_thread(first_failing, code, tests, LIMITS)
    return failing and (failing[0], replace(failing[1], output=failing[1].output[:10_000]))


def in_words(test: Mapping[str, Any], outcome: Outcome, number: int) -> str:
    result = "output" if "input" in test else "result"
    happened = {
        "wrong": f"the {result} is wrong.",
        "error": "the program ends with an error.",
        "timeout": "the program takes too long and is stopped.",
    }[outcome.verdict]
    if "input" in test:
        blocks = {"Input": test["input"], "Expected output": test["output"]}
        blocks |= {"error": {"Error": outcome.error}, "wrong": {"Output": outcome.output}}.get(outcome.verdict, {})
    else:
        called = test.get("assert") or f"{test['entry']}({', '.join(map(repr, test['args']))}) == {test['expected']!r}"
        blocks = {"Test": called, "Result": outcome.error}
    shown = [f"{title}:\n```\n{clipped(text.rstrip(), LONGEST)}\n```" for title, text in blocks.items()]
    return "\n".join([f"Public test {number + 1}: {happened}", *shown])
