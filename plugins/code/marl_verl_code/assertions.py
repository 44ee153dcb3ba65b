"""Assertions about a function, as in HumanEval: each test runs in the sandbox, apart from the program."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from marl_verl import MarlError
from marl_verl.sandbox import Limits, Outcome, current


@dataclass(frozen=True)
class Budget:
    """Limits for the tests of one program.

    Attributes:
        seconds: wall-clock time of all tests.
        test_seconds: wall-clock time of one test.
        megabytes: address space of each process.
    """

    seconds: float = 10.0
    test_seconds: float = 3.0
    megabytes: int = 512

    def __post_init__(self) -> None:
        if not 0 < self.test_seconds <= self.seconds:
            raise MarlError(f"'test_seconds' must be above 0 and at most 'seconds', got {self.test_seconds}")
        Limits(self.test_seconds, self.megabytes)


def share(outcomes: Sequence[Outcome]) -> float:
    """Share of the tests that passed, 0 to 1; 0 without tests."""
    return sum(each.passed for each in outcomes) / len(outcomes) if outcomes else 0.0


@functools.lru_cache(maxsize=4096)
def run_assertions(program: str, entry: str, setup: str, tests: tuple[str, ...], budget: Budget) -> tuple[Outcome, ...]:
    """Run tests and return one outcome each, in order. Results are cached per process.

    Args:
        program: the module under test.
        entry: name of the function, which tests can also call as `candidate`.
        setup: statements before each test.
        tests: statements, each with an assertion or more.
    """
    end, sandbox = time.monotonic() + budget.seconds, current()
    found: list[Outcome] = []
    for test in tests:
        left = min(budget.test_seconds, end - time.monotonic())
        if left <= 0:
            found.append(Outcome("timeout", error=f"the tests took longer than {budget.seconds:g} s"))
        else:
            found.append(sandbox.holds(program, entry, setup, test, Limits(left, budget.megabytes)))
    return tuple(found)
