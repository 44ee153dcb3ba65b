"""Calls of one function in a process of their own, each with a limit of time and memory.

For libraries that a text can keep busy for ever, such as SymPy, and whose own time limits need the main thread. The
process, which runs this file, starts with the first call, stays warm, and ends with this one.
"""

import atexit
import json
import logging
import os
import resource
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError

_START_SECONDS = 300.0  # importing sympy on a busy machine
_GRACE = 30.0
_MEMORY = 4 << 30


class Limited:
    """The function `answer(*arguments)` of a Python file, which may import installed packages; it takes and returns
    plain JSON values. `warm()` of the file imports what is needed, once. `name` is for errors."""

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.stop)

    def call(self, *arguments: Any, seconds: float) -> Any:
        """The function's value; None if it raised an exception, or was stopped at a limit. MarlError: the file cannot
        be loaded."""
        with self._lock:
            for _ in range(2):  # again, if something ended the process since the last request
                process = self._started()
                try:
                    print(json.dumps([seconds, *arguments]), file=process.stdin, flush=True)
                    reply = _line(process, seconds + _GRACE)
                except BrokenPipeError:
                    reply = ""
                if reply:
                    return json.loads(reply)
                self.stop()
            return None

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-I", __file__, str(self._file)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, encoding="utf-8")
            if _line(self._process, _START_SECONDS) != '"ready"':
                self._process.kill()
                _, errors = self._process.communicate()
                self._process = None
                raise MarlError(f"{self._name} cannot be loaded: {' '.join(errors.split())[-300:]}")
        return self._process


def _line(process: subprocess.Popen[str], seconds: float) -> str:
    """The next line of the process; "" at its end, or after a number of seconds."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if ready else ""


def _main() -> None:
    """Write "ready", then answer until the input ends.

    A forked worker reads `[seconds, ...]` lines and writes the value of `answer(...)`. A timer of processor time (a
    busy machine is no reason for another answer) kills a worker that needs longer: neither SymPy nor a power of
    Python's integers can be interrupted otherwise. Then `null` is written, and a new worker is forked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run
    logging.disable(logging.CRITICAL)
    names = runpy.run_path(sys.argv[1])
    names.get("warm", lambda: None)()
    print('"ready"', flush=True)
    while True:
        worker = os.fork()
        if worker == 0:
            try:
                _serve(names["answer"])
            finally:
                os._exit(0)
        _, status = os.waitpid(worker, 0)
        if not os.WIFSIGNALED(status):
            return
        print("null", flush=True)


def _serve(answer: Callable[..., Any]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(0, encoding="utf-8", closefd=False) as requests:
        for line in requests:
            seconds, *arguments = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            try:
                value = answer(*arguments)
            except Exception:  # noqa: BLE001 - libraries raise anything on arbitrary text
                value = None
            signal.setitimer(signal.ITIMER_PROF, 0)
            print(json.dumps(value), flush=True)


if __name__ == "__main__":
    _main()
