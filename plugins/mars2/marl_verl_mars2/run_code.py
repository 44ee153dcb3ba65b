"""Run a candidate program on tests, each in a process of its own: standard input in, standard output out.

A test passes when the program ends with exit code 0 in time and its output has the expected words in order (white space
is not compared). A process has limits, set by itself before the program begins (`resource.setrlimit`): CPU seconds,
address space, size of the files that it writes (its output too), no core dump; it gets none of our environment, a
temporary folder to be in, and is killed with its process group when the wall clock says so.

This is no sandbox. The program runs as the user who trains, may read and write whatever that user may, and reach the
network. If that is not acceptable, train in a container or a virtual machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

OUTPUT = 1 << 20
"""Bytes that a program may write to any file, its output and its error output among them."""

# Becomes the program: limits that a parent sets between fork and exec are not safe where there are threads.
LIMITED = """
import os, resource as r, sys
seconds, memory, written = map(int, sys.argv[1:4])
r.setrlimit(r.RLIMIT_CPU, (seconds, seconds + 1))
r.setrlimit(r.RLIMIT_AS, (memory, memory))
r.setrlimit(r.RLIMIT_FSIZE, (written, written))
r.setrlimit(r.RLIMIT_CORE, (0, 0))
os.execv(sys.executable, [sys.executable, "-I", sys.argv[4]])
"""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
"""All of it. A thread for every core, as numeric libraries start them, would use up the address space."""

_threads = ThreadPoolExecutor(max_workers=os.cpu_count() or 1, thread_name_prefix="mars2 test")
"""As many programs at once as there are cores, whatever the number of tasks under way."""


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program.

    Attributes:
        seconds: wall-clock limit; the CPU limit is this rounded up, plus one second.
        megabytes: limit of the address space.
    """

    seconds: float = 6.0
    megabytes: int = 1024


@dataclass(frozen=True)
class Outcome:
    """Result of a program on one test.

    Attributes:
        verdict: "passed", "wrong" output, "error" (an exit code other than 0), or "timeout".
        output: its standard output, with replacement characters where it is not UTF-8.
        error: the end of its error output.
    """

    verdict: str
    output: str = ""
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether the test passes."""
        return self.verdict == "passed"


async def run_tests(code: str, tests: Sequence[Mapping[str, str]], limits: Limits, stop: bool = False) -> list[Outcome]:
    """Run a program on tests `{"input": ..., "output": ...}` ; return outcomes in order. Does not block the loop.

    Args:
        stop: end with the first test that does not pass, which is then the last of the list.
    """
    loop = asyncio.get_running_loop()
    if stop:
        found: list[Outcome] = []
        for test in tests:
            found.append(await loop.run_in_executor(_threads, run_test, code, test, limits))
            if not found[-1].passed:
                break
        return found
    return list(await asyncio.gather(*(loop.run_in_executor(_threads, run_test, code, test, limits) for test in tests)))


def run_test(code: str, test: Mapping[str, str], limits: Limits) -> Outcome:
    """Run a program on one test; blocks for at most `limits.seconds`."""
    with tempfile.TemporaryDirectory(prefix="mars2-") as folder:
        program, out, err = (Path(folder) / name for name in ("program.py", "out", "err"))
        program.write_text(code, encoding="utf-8", errors="replace")
        (Path(folder) / "in").write_text(test["input"], encoding="utf-8")
        numbers = (int(limits.seconds) + 1, limits.megabytes << 20, OUTPUT)
        command = [sys.executable, "-I", "-S", "-c", LIMITED, *map(str, numbers), str(program)]
        with (Path(folder) / "in").open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=folder, env=ENVIRONMENT, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
            )
            try:
                ended: int | None = process.wait(limits.seconds)
            except subprocess.TimeoutExpired:
                ended = None
            finally:
                _kill(process)
        output, error = _read(out), _read(err).replace(folder + os.sep, "")[-2000:]  # identical in every run
        if ended is None or ended == -signal.SIGXCPU:
            return Outcome("timeout", output, error)
        if ended != 0:
            return Outcome("error", output, error or f"ended with exit code {ended}")
        return Outcome("passed" if output.split() == test["output"].split() else "wrong", output, error)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and all processes of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
