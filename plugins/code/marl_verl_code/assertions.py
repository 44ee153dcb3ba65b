"""Assertions about a function, as in HumanEval: each test runs in the sandbox, apart from the program."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from marl_verl_sandbox import Limits, Outcome, current

TIMEOUTS = 3
"""After so many tests of a program that take too long, the others fail without running."""


def share(outcomes: Sequence[Outcome]) -> float:
    """Share of the tests that passed, 0 to 1; 0 without tests."""
    return sum(outcome.passed for outcome in outcomes) / len(outcomes) if outcomes else 0.0


@functools.lru_cache(maxsize=4096)
def run_assertions(program: str, entry: str, setup: str, tests: tuple[str, ...], limits: Limits) -> tuple[Outcome, ...]:
    """Run tests and return one outcome each, in order. Results are cached per process.

    Args:
        program: the module under test.
        entry: name of the function, which tests can also call as `candidate`.
        setup: statements before each test.
        tests: statements, each with an assertion or more.
        limits: of each test.
    """
    sandbox = current()
    outcomes: list[Outcome] = []
    for test in tests:
        if sum(outcome.verdict == "timeout" for outcome in outcomes) < TIMEOUTS:
            outcomes.append(sandbox.holds(program, entry, setup, test, limits))
        else:
            outcomes.append(Outcome("timeout", error=f"not run: {TIMEOUTS} tests took too long"))
    return tuple(outcomes)
