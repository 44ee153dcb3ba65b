"""A few lines of Python in a process of their own: what kills it, or hangs, leaves the doctor alive."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What became of it.

    Attributes:
        out: what it printed.
        wrong: why it did not end well, in a line; "" where it did.
    """

    out: str
    wrong: str


@contextmanager
def started(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Code running with this process's Python and modules, which is killed at the end of the block."""
    # -P: what lies in the working folder is no module; what this process finds is found there
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", code, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def outcome(process: subprocess.Popen[str], seconds: float) -> Done:
    """What becomes of a process within `seconds` from now."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return Done("", f"it was not done after {seconds:g} s")
    code = process.returncode
    if code == 0:
        return Done(out, "")
    last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Done(out, last.strip() or f"it ended with {ended}, and said nothing")


def python(code: str, *arguments: str, seconds: float) -> Done:
    """Run code to its end, for at most `seconds`."""
    with started(code, *arguments) as process:
        return outcome(process, seconds)
