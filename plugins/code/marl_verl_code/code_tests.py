"""Task set `code-with-tests`: problems to be solved by a Python program, judged by tests.

A row of a task file is {"id": ..., "prompt": the problem, "data": {"public": [...], "private": [...]}}; `sets` has the
forms of a test, the simplest of which is {"input": text, "output": text}. Public tests may be shown: they give feedback
and the public score. The score is 1 when all tests pass, public and private, as MARS2's node reward. Scoring is async:
programs run in the sandbox, and the event loop is not blocked.
"""

import asyncio
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Literal

from marl_verl_sandbox import Limits, Megabytes, Outcome, Seconds, current

from marl_verl import MarlError, Task
from marl_verl.errors import shown
from marl_verl.tasks import PublicTasks
from marl_verl_code.sets import SETS

Which = Literal["public", "private"]
Test = Mapping[str, Any]
STREAMS: Mapping[str, type] = {"input": str, "output": str}
FORMS: Sequence[Mapping[str, type]] = (
    STREAMS,
    {"entry": str, "args": list, "expected": object},
    {"entry": str, "assert": str},
)
TIMEOUTS = 3
_CRASHED = re.compile(r'^Traceback \(most recent call last\)|^  File "|^signal ', re.MULTILINE)
_threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="code tests")


class CodeWithTests(PublicTasks):
    """Problems with tests, from a public set or a file.

    Options:
        seconds: wall-clock limit of one test.
        megabytes: limit of the address space.
    """

    sets: ClassVar = SETS
    seconds: Seconds = 6.0
    megabytes: Megabytes = 1024

    def check(self, task: Task) -> None:
        all_tests(task)

    async def score(self, task: Task, answer: Any) -> float:
        """1 when a program passes all tests, else 0. Stops at the first failure. An empty program scores 0."""
        outcomes = await self._outcomes(answer, all_tests(task), stop=True)
        return float(bool(outcomes) and outcomes[-1].passed)

    def reference(self, task: Task) -> Any:
        """The reference solution; None where the set has none."""
        solution = task.data.get("solution")
        return solution if isinstance(solution, str) and solution.strip() else None

    async def measures(self, task: Task, answer: Any) -> dict[str, float]:
        """`pass_rate`: the share of all tests, public and private, that a program passes. After `TIMEOUTS` that take
        too long, the others fail."""
        return {"pass_rate": share(await self._outcomes(answer, all_tests(task), timeouts=TIMEOUTS))}

    async def public_score(self, task: Task, answer: Any) -> float:
        """Share of the public tests that a program passes. MarlError where there is no public test."""
        tests = tests_of(task, "public")
        if not tests:
            raise MarlError(f"task '{task.id}' has no public tests: nothing can be chosen by its public score")
        return share(await self._outcomes(answer, tests))

    async def _outcomes(self, answer: str, tests: Sequence[Test], **options: Any) -> list[Outcome]:
        """The outcomes of `run_tests`; none for an empty program."""
        return await run_tests(answer, tests, Limits(self.seconds, self.megabytes), **options) if answer.strip() else []


def run_test(code: str, test: Test, limits: Limits) -> Outcome:
    """Run a program on one test of any form. A program may end with any exit code, but not with an exception."""
    sandbox = current()
    program = f"{test['before']}\n\n{code}" if test.get("before") else code
    if "input" in test:
        outcome = sandbox.prints(program, test["input"], test["output"], limits)
        exited = outcome.verdict == "error" and not _CRASHED.search(outcome.error)
        right = exited and outcome.output.split() == test["output"].split()
        return Outcome("passed", outcome.output) if right else outcome
    if "assert" in test:
        return sandbox.holds(program, test["entry"], test.get("setup", ""), test["assert"], limits)
    outcome = sandbox.returns(program, test["entry"], test["args"], test["expected"], limits)
    if outcome.verdict == "wrong" and "or" in test:
        return sandbox.returns(program, test["entry"], test["args"], test["or"], limits)
    return outcome


def run_all(
    code: str, tests: Sequence[Test], limits: Limits, stop: bool = False, timeouts: float = math.inf
) -> list[Outcome]:
    """Run a program on tests, one after the other. `stop`: end with the first that does not pass, which is then the
    last of the list. After `timeouts` that take too long, the others fail without running."""
    outcomes: list[Outcome] = []
    for test in tests:
        if sum(outcome.verdict == "timeout" for outcome in outcomes) < timeouts:
            outcomes.append(run_test(code, test, limits))
        else:
            outcomes.append(Outcome("timeout", error=f"not run: {timeouts} tests took too long"))
        if stop and not outcomes[-1].passed:
            break
    return outcomes


async def run_tests(code: str, tests: Sequence[Test], limits: Limits, **options: Any) -> list[Outcome]:
    """As `run_all`, without blocking the event loop."""
    call = functools.partial(run_all, code, tests, limits, **options)
    return await asyncio.get_running_loop().run_in_executor(_threads, call)


def share(outcomes: Sequence[Outcome]) -> float:
    """Share of the tests that passed, 0 to 1; 0 without tests."""
    return sum(outcome.passed for outcome in outcomes) / len(outcomes) if outcomes else 0.0


def all_tests(task: Task) -> list[Test]:
    """The public and the private tests of a task."""
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
