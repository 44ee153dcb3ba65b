"""A few lines of Python in a process of their own: what kills it, or hangs, leaves the doctor alive."""

from __future__ import annotations

import os
import subprocess
import sys
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


def python(code: str, *arguments: str, seconds: float) -> Done:
    """Run code with this process's Python and modules, for at most `seconds`."""
    # -P: what lies in the working folder is no module; what this process finds is found there
    path = os.pathsep.join(entry for entry in sys.path if entry)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            start_new_session=True,  # Ctrl-C is the doctor's
        )
    except subprocess.TimeoutExpired:
        return Done("", f"it was not done after {seconds:g} s")
    if done.returncode == 0:
        return Done(done.stdout, "")
    last = next((line for line in reversed(done.stderr.splitlines()) if line.strip()), "")
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return Done(done.stdout, last.strip() or f"it ended with {ended}, and said nothing")
