"""Whether two final answers are equal, by math-verify (a computer algebra system), within limits.

math-verify works in a process of its own (`match_child`), because an answer such as `9^{9^9}` would keep sympy busy for
ever, and its own time limit needs the main thread. The process starts with the first comparison, stays warm, and ends
with this one. An answer that needs longer than `SECONDS`, or more than 4 GiB, is not equal.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import re
import select
import subprocess
import sys
import threading
from pathlib import Path

from marl_verl.errors import MarlError

SECONDS = 3.0
LONGEST = 1000
"""Maximum characters of an answer; a longer one is equal only to itself."""

_START_SECONDS = 300.0  # importing sympy on a busy machine
_GRACE = 30.0
_INTEGER = re.compile(r"-?\d{1,18}")


async def same(answer: str, truth: str) -> bool:
    """Whether an answer is equal to the truth, without blocking the event loop."""
    answer, truth = answer.strip(), truth.strip()
    if not answer or not truth:
        return False
    if answer == truth:
        return True
    if len(answer) > LONGEST or len(truth) > LONGEST:
        return False
    if _INTEGER.fullmatch(answer) and _INTEGER.fullmatch(truth):  # most answers, most of them wrong
        return int(answer) == int(truth)
    return await asyncio.to_thread(_compared, answer, truth)


class _Child:
    """The process. It is restarted if it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, answer: str, truth: str, seconds: float) -> bool:
        """Compare; False after the time limit. MarlError if math-verify cannot be loaded."""
        with self._lock:
            for _ in range(2):  # again, if something ended the process since the last request
                process = self._started()
                try:
                    print(json.dumps([answer, truth, seconds]), file=process.stdin, flush=True)
                    reply = _line(process, seconds + _GRACE)
                except BrokenPipeError:
                    reply = ""
                if reply:
                    return reply == "true"
                self.stop()
            return False

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-I", str(Path(__file__).with_name("match_child.py"))]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
            if _line(self._process, _START_SECONDS) != '"ready"':
                self._process.kill()
                _, errors = self._process.communicate()
                self._process = None
                raise MarlError(f"math-verify cannot be loaded: {' '.join(errors.split())[-300:]}")
        return self._process


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of the process; "" at its end, or after a number of seconds."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if ready else ""


_CHILD = _Child()
atexit.register(_CHILD.stop)


@functools.lru_cache(maxsize=1 << 16)
def _compared(answer: str, truth: str) -> bool:
    return _CHILD.ask(answer, truth, SECONDS)
