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


class Python:
    """Code at work, with this process's Python and modules. A context manager: at its end the process is gone."""

    def __init__(self, code: str, *arguments: str) -> None:
        # -P: what lies in the working folder is no module; what this process finds is found there
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> Python:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def wait(self, seconds: float) -> Done:
        """What becomes of it within `seconds` from now."""
        try:
            out, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Done("", f"it was not done after {seconds:g} s")
        code = self._process.returncode
        if code == 0:
            return Done(out, "")
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return Done(out, last.strip() or f"it ended with {ended}, and said nothing")


def python(code: str, *arguments: str, seconds: float) -> Done:
    """Run code to its end, for at most `seconds`."""
    with Python(code, *arguments) as running:
        return running.wait(seconds)
