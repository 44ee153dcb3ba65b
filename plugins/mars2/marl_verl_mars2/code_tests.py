"""Task set `code-with-tests`: problems to be solved by a Python program, judged by tests on its standard output.

A row of a task file is {"id": ..., "prompt": the problem, "data": {"public": [...], "private": [...]}}, and a test is
{"input": text, "output": text}. Public tests may be shown: they give feedback and the public score. The score is 1 when
all tests pass, public and private, as MARS2's node reward. Scoring is async: programs run in processes of their own
(`run_code`, with limits, but without a sandbox), and the event loop is not blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from marl_verl import MarlError, Task, TaskSet
from marl_verl.errors import nearest
from marl_verl_mars2.run_code import Limits, run_tests

Which = Literal["public", "private"]


class CodeWithTests(TaskSet):
    """Problems with tests, from a file.

    Options:
        seconds: wall-clock limit of one test.
        megabytes: limit of the address space.
    """

    seconds: float = 6.0
    megabytes: int = 1024

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise MarlError(f"code-with-tests: seconds must be above 0, got {self.seconds}")
        if self.megabytes < 64:
            raise MarlError(f"code-with-tests: megabytes must be 64 or more for Python to start, got {self.megabytes}")

    async def score(self, task: Task, answer: Any) -> float:
        """1 when a program passes all tests, else 0. Stops at the first failure. An empty program scores 0.

        Raises:
            MarlError: the answer is not text, or the task's tests are invalid.
        """
        tests = [*tests_of(task, "public"), *tests_of(task, "private")]
        if not _program(answer):
            return 0.0
        return float((await run_tests(answer, tests, self._limits(), stop=True))[-1].passed)

    async def public_score(self, task: Task, answer: Any) -> float:
        """Share of the public tests that a program passes. MarlError as `score`, or where there is no public test."""
        tests = tests_of(task, "public")
        if not tests:
            raise MarlError(f"task '{task.id}' has no public tests: nothing can be chosen by its public score")
        if not _program(answer):
            return 0.0
        outcomes = await run_tests(answer, tests, self._limits())
        return sum(outcome.passed for outcome in outcomes) / len(tests)

    def _limits(self) -> Limits:
        return Limits(self.seconds, self.megabytes)


def tests_of(task: Task, which: Which) -> Sequence[Mapping[str, str]]:
    """The tests of a task; private ones must be there.

    Raises:
        MarlError: no such tests, or one that is not a pair of texts.
    """
    found = task.data.get(which, [] if which == "public" else None)
    if not isinstance(found, list) or (which == "private" and not found):
        known = nearest(which, map(str, task.data)) if which not in task.data else "it must be a list of tests"
        raise MarlError(f"task '{task.id}' has no {which} tests in its data: {known}")
    for number, test in enumerate(found, start=1):
        texts = isinstance(test, Mapping) and all(isinstance(test.get(name), str) for name in ("input", "output"))
        if not texts:
            raise MarlError(
                f"task '{task.id}', {which} test {number} must have texts 'input' and 'output', got {test!r:.60}"
            )
    return found


def _program(answer: Any) -> bool:
    if not isinstance(answer, str):
        raise MarlError(f"code-with-tests scores a program as text, got {type(answer).__name__}")
    return bool(answer.strip())
