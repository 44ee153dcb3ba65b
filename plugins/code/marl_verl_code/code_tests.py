"""Task set `code-with-tests`: problems to be solved by a Python program, judged by tests.

A row of a task file is {"id": ..., "prompt": the problem, "data": {"public": [...], "private": [...]}}; `sets` has the
forms of a test, the simplest of which is {"input": text, "output": text}. Public tests may be shown: they give feedback
and the public score. The score is 1 when all tests pass, public and private, as MARS2's node reward. Scoring is async:
programs run in the sandbox, and the event loop is not blocked.
"""

import asyncio
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar, Literal, TypeVar

from marl_verl_datasets import PublicTasks
from marl_verl_sandbox import Limits, Megabytes, Outcome, Seconds, current

from marl_verl import MarlError, Task
from marl_verl.errors import shown
from marl_verl_code.sets import SETS

Which = Literal["public", "private"]
Test = Mapping[str, Any]
T = TypeVar("T")
STREAMS: Mapping[str, type] = {"input": str, "output": str}
FORMS = STREAMS, {"entry": str, "args": list, "expected": object}, {"entry": str, "assert": str}
LIMITS = Limits(6.0, 1024)  # of a test, unless the task set has others; also of feedback and role rewards
TIMEOUTS = 3
_threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="code tests")


class CodeWithTests(PublicTasks):
    """Problems with tests, from a public set or a file.

    Options:
        seconds: wall-clock limit of one test.
        megabytes: limit of the address space.
    """

    sets: ClassVar = SETS
    seconds: Seconds = LIMITS.seconds
    megabytes: Megabytes = LIMITS.megabytes

    def check(self, task: Task) -> None:
        all_tests(task)

    async def score(self, task: Task, answer: Any) -> float:
        """1 when a program passes all tests, else 0. Stops at the first failure. An empty program scores 0."""
        return float(await in_thread(first_failing, answer, all_tests(task), self._limits()) is None)

    def reference(self, task: Task) -> Any:
        solution = task.data.get("solution")
        return solution if isinstance(solution, str) and solution.strip() else None

    async def measures(self, task: Task, answer: Any) -> dict[str, float]:
        """`pass_rate`: the share of all tests, public and private, that a program passes (`run_all`)."""
        return {"pass_rate": share(await in_thread(run_all, answer, all_tests(task), self._limits()))}

    async def public_score(self, task: Task, answer: Any) -> float:
        """Share of the public tests that a program passes. MarlError where there is no public test."""
        tests = tests_of(task, "public")
        if not tests:
            raise MarlError(f"task '{task.id}' has no public tests: nothing can be chosen by its public score")
        return share(await run_tests(answer, tests, self._limits()))

    def _limits(self) -> Limits:
        return Limits(self.seconds, self.megabytes)


def run_test(code: str, test: Test, limits: Limits) -> Outcome:
    """Run a program on one test of any form. A program may end with any exit code, but not with an exception or
    a signal; an empty one passes no test."""
    if not code.strip():
        return Outcome("wrong", error="there is no program")
    sandbox = current()
    program = f"{test['before']}\n\n{code}" if test.get("before") and "from __future__" not in code else code
    numbers = bool(test.get("numbers"))
    if "input" in test:
        same = functools.partial(_printed, numbers)
        return sandbox.prints(program, test["input"], test["output"], limits, same, exits=True)
    if "assert" in test:
        return sandbox.holds(program, test["entry"], test.get("setup", ""), test["assert"], limits)
    outcome = sandbox.returns(program, test["entry"], test["args"], test["expected"], limits, numbers=numbers)
    if outcome.verdict == "wrong" and "or" in test:
        return sandbox.returns(program, test["entry"], test["args"], test["or"], limits, numbers=numbers)
    return outcome


def _printed(numbers: bool, output: str, expected: str) -> bool:
    """Whether an output has the expected words; or, with `numbers`, the lines, those of numbers by value."""
    return output.split() == expected.split() or (numbers and _lines(output) == _lines(expected))


def _lines(text: str) -> list[list[Any]]:
    return [_numbers(line.split()) for line in text.strip().splitlines()]


def _numbers(words: list[str]) -> list[Any]:
    try:
        numbers = [Decimal(word) for word in words]
    except InvalidOperation:
        return words
    return numbers if all(map(Decimal.is_finite, numbers)) else words


def run_all(code: str, tests: Sequence[Test], limits: Limits) -> list[Outcome]:
    """Run a program on tests, one after the other. After `TIMEOUTS` that take too long, the others fail without
    running."""
    outcomes: list[Outcome] = []
    for test in tests:
        if sum(outcome.verdict == "timeout" for outcome in outcomes) < TIMEOUTS:
            outcomes.append(run_test(code, test, limits))
        else:
            outcomes.append(Outcome("timeout", error=f"not run: {TIMEOUTS} tests took too long"))
    return outcomes


def first_failing(code: str, tests: Sequence[Test], limits: Limits) -> tuple[int, Outcome] | None:
    """(number, outcome) of the first test that a program does not pass; the later ones do not run."""
    outcomes = ((number, run_test(code, test, limits)) for number, test in enumerate(tests))
    return next(((number, outcome) for number, outcome in outcomes if not outcome.passed), None)


async def run_tests(code: str, tests: Sequence[Test], limits: Limits = LIMITS) -> list[Outcome]:
    """Run a program on tests concurrently, without blocking the event loop; return outcomes in order."""
    return await asyncio.gather(*(in_thread(run_test, code, test, limits) for test in tests))


def in_thread(fn: Callable[..., T], code: str, tests: Any, limits: Limits) -> asyncio.Future[T]:
    """Call one of the above in a thread for programs."""
    return asyncio.get_running_loop().run_in_executor(_threads, fn, code, tests, limits)


def share(outcomes: Sequence[Outcome]) -> float:
    """Share of the tests that passed, 0 to 1; 0 without tests."""
    return sum(outcome.passed for outcome in outcomes) / len(outcomes) if outcomes else 0.0


def all_tests(task: Task) -> list[Test]:
    return [*tests_of(task, "public"), *tests_of(task, "private")]


def tests_of(task: Task, which: Which) -> Sequence[Test]:
    """The tests of a task; private ones must be there. MarlError: no such tests, or one of another form."""
    tests = task.data.get(which, [] if which == "public" else None)
    if not isinstance(tests, list) or (which == "private" and not tests):
        raise MarlError(f"task '{task.id}' has no list of {which} tests in its data, got {shown(tests)}")
    for number, test in enumerate(tests, start=1):
        if not any(has(test, form) for form in FORMS):
            forms = "texts 'input' and 'output', 'entry' with 'args' and 'expected', or 'entry' with 'assert'"
            raise MarlError(f"task '{task.id}', {which} test {number} must have {forms}, got {test!r:.60}")
    return tests


def has(test: Any, form: Mapping[str, type]) -> bool:
    """Whether a test has the keys of a form, with values of its types."""
    return isinstance(test, Mapping) and all(name in test and isinstance(test[name], form[name]) for name in form)
