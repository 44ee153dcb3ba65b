"""Run a check in a child process, so that the modules which it imports do not stay in this one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

HEAVY = "torch"  # 0.3 GiB, which transformers imports with a tokenizer


def check_in_child(*checks: Callable[[], object]) -> None:
    """Run checks that only raise, in a forked child. Where one fails there, run them here, which raises its error.

    They run here at once where a child saves nothing (torch is imported already) or where forking is unsafe
    (this process has threads, as in a notebook).
    """
    if HEAVY in sys.modules or threading.active_count() > 1 or sys.platform != "linux" or not _succeeds(checks):
        for check in checks:
            check()


def _succeeds(checks: Sequence[Callable[[], object]]) -> bool:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
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
