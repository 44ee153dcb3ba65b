"""Tests of a program, run in a process of its own with limits on time, memory, processes and files.

This keeps a program that loops, or fills the memory, from harming a run. It is no sandbox: the program has the rights
of the user who trains, and can read what that user can read. Run it where that does not matter.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_verl import MarlError

CHILD = Path(__file__).with_name("run_tests_child.py")
GRACE = 2.0
"""Seconds that the child has for its start and its end."""
AT_ONCE = threading.BoundedSemaphore(os.cpu_count() or 1)
"""A tree's joint actions are scored at the same time, each in a thread: not more of them run than there are cores, so
that a program's time is its own."""


@dataclass(frozen=True)
class Limits:
    """What the tests of one program may take together, and each by itself.

    Attributes:
        seconds: of all tests, by the clock and of processor time.
        test_seconds: of one test.
        megabytes: of address space.
    """

    seconds: float = 10.0
    test_seconds: float = 3.0
    megabytes: int = 512

    def __post_init__(self) -> None:
        if not 0 < self.test_seconds <= self.seconds:
            raise MarlError(f"'test_seconds' must be above 0 and at most 'seconds', got {self.test_seconds}")
        if self.megabytes < 64:
            raise MarlError(f"'megabytes' must be at least 64, got {self.megabytes}: Python itself needs that")


@dataclass(frozen=True)
class Outcome:
    """What became of one test.

    Attributes:
        passed: it raised nothing.
        said: otherwise what it raised, in a line.
    """

    passed: bool
    message: str = ""


def share(outcomes: Sequence[Outcome]) -> float:
    """Of the tests that passed, 0 to 1; 0 without tests."""
    return sum(each.passed for each in outcomes) / len(outcomes) if outcomes else 0.0


@functools.lru_cache(maxsize=4096)
def run_tests(program: str, entry: str, setup: str, tests: tuple[str, ...], limits: Limits) -> tuple[Outcome, ...]:
    """An outcome for each test, in order. The same question is answered once in a process.

    Args:
        program: the module under test.
        entry: the name in it that tests know as `candidate`, too.
        setup: statements before the tests.
        tests: statements, each with an assertion or more.
    """
    given = {
        "program": program,
        "entry": entry,
        "setup": setup,
        "tests": list(tests),
        "seconds": limits.seconds,
        "test_seconds": limits.test_seconds,
        "bytes": limits.megabytes << 20,
    }
    with AT_ONCE, tempfile.TemporaryDirectory(prefix="marl-verl-tests-") as folder:
        reply = Path(folder) / "reply.jsonl"
        message = _child(
            [sys.executable, "-I", str(CHILD), str(reply)], json.dumps(given), folder, limits.seconds + GRACE
        )
        lines = reply.read_text(encoding="utf-8", errors="replace").splitlines() if reply.is_file() else []
    found = [Outcome(*each) for each in map(_outcome, lines) if each is not None][: len(tests)]
    return (*found, *[Outcome(False, message)] * (len(tests) - len(found)))


def _child(command: list[str], given: str, folder: str, seconds: float) -> str:
    """Run it to its end, or end it and all it has started. What to say of tests that it did not come to."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PATH": os.environ.get("PATH", ""), "HOME": folder},
        start_new_session=True,
        text=True,
    )
    try:
        process.communicate(given, timeout=seconds)
        code = process.returncode
        return (
            f"the program ended the process ({code})" if code >= 0 else "the program was ended: too long or too large"
        )
    except subprocess.TimeoutExpired:
        return "too long"
    finally:
        with contextlib.suppress(ProcessLookupError):  # nothing is left of it
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(line: str) -> tuple[bool, str] | None:
    try:
        passed, message = json.loads(line)
    except (ValueError, TypeError):
        return None
    return bool(passed), str(message)
