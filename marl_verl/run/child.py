"""Work in a forked child: checks, so that the modules which they import do not stay here, and the plan of a run."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence

from marl_verl.run.supervisor import prctl

PATIENCE = 2.0
"""Seconds until a child is interrupted, and killed, if it does not end."""
HEAVY = "torch"  # 0.3 GiB, which transformers imports with a tokenizer


def check_in_child(*checks: Callable[[], object], here: bool = False) -> None:
    """Run checks that only raise, in a forked child. Where one fails there, run them here, which raises its error.

    They run here at once if asked (`here`), where a child saves nothing (torch is imported already) or where forking is
    unsafe (this process has threads, as in a notebook).
    """
    if here or HEAVY in sys.modules or threading.active_count() > 1 or sys.platform != "linux" or not _succeeds(checks):
        for check in checks:
            check()


def in_child(work: Callable[[int], int], meanwhile: Callable[[], object]) -> str:
    """The text that `work` writes to a file descriptor, in a forked child, while this process does `meanwhile`.

    Call it in the main thread of a process without others. SystemExit ends `meanwhile` early: with the exit code that
    `work` returned if it is not 0; with 130 after Ctrl-C, when the child has ended, too.
    """
    reading, writing = os.pipe()
    child = _fork()
    if not child:
        code = 1
        try:
            prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: if this process is killed
            code = work(writing)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writing)

    def check(option: int = os.WNOHANG) -> bool:
        """Whether the child has ended. SystemExit if it failed."""
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | option)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            raise RuntimeError(f"the process that checks the run was killed (signal {ended.si_status})")
        if ended is not None and ended.si_status:
            raise SystemExit(ended.si_status)
        return ended is not None

    before = signal.signal(signal.SIGCHLD, lambda *_: check())
    try:
        meanwhile()
        with open(reading) as pipe:
            text = pipe.read()
        check(0)
        return text
    except KeyboardInterrupt:
        for number in (signal.SIGINT, signal.SIGKILL):
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and not check():  # a terminal has interrupted the child already
                time.sleep(0.1)
            os.kill(child, number)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGCHLD, before)
        os.waitpid(child, 0)


def _fork() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def _succeeds(checks: Sequence[Callable[[], object]]) -> bool:
    child = _fork()
    if not child:
        code = 1
        try:
            for check in checks:
                check()
            code = 0
        finally:
            os._exit(code)  # nothing of this process is closed or printed twice
    try:
        return os.waitpid(child, 0)[1] == 0
    except BaseException:  # Ctrl-C, or a signal that only this process has received
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
