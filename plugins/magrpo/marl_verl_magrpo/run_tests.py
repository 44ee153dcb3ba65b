"""Run the tests of a program in a separate process, with limits on time, memory, processes and files.

The limits keep a program that loops or fills the memory from harming a run. They are not a sandbox: the program has the
rights of the user who trains. Use a container if that is not acceptable.
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
"""Additional seconds for the start and end of the child process."""
AT_ONCE = threading.BoundedSemaphore(os.cpu_count() or 1)
"""Limits concurrent programs to the number of cores, so that a time limit is not spent waiting for a core. (The joint
actions of a tree are scored concurrently, in threads.)"""


@dataclass(frozen=True)
class Limits:
    """Limits for the tests of one program.

    Attributes:
        seconds: wall-clock and processor time of all tests.
        test_seconds: wall-clock time of one test.
        megabytes: address space.
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
    """The result of one test.

    Attributes:
        passed: whether the test raised nothing.
        message: otherwise its exception, on one line.
    """

    passed: bool
    message: str = ""


def share(outcomes: Sequence[Outcome]) -> float:
    """Share of the tests that passed, 0 to 1; 0 without tests."""
    return sum(each.passed for each in outcomes) / len(outcomes) if outcomes else 0.0


@functools.lru_cache(maxsize=4096)
def run_tests(program: str, entry: str, setup: str, tests: tuple[str, ...], limits: Limits) -> tuple[Outcome, ...]:
    """Run tests and return one outcome each, in order. Results are cached per process.

    Args:
        program: the module under test.
        entry: name of the function, which tests can also call as `candidate`.
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
    """Run the child process, or kill its process group after `seconds`. Returns the message for tests not run."""
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
        with contextlib.suppress(ProcessLookupError):  # the process group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _outcome(line: str) -> tuple[bool, str] | None:
    try:
        passed, message = json.loads(line)
    except (ValueError, TypeError):
        return None
    return bool(passed), str(message)
