"""Finds an event loop that is blocked: by an endless loop or slow code between two effects."""

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from marl_verl.errors import user_line
from marl_verl.events import SCRATCH_VARIABLE
from marl_verl.threads import ATTACHED

PIECES = 20  # waits per limit: a process that was stopped meanwhile has waited for one of them only


def reason_file() -> Path | None:
    """Where the reason is written for the trainer, which sees this process die: in the run's scratch folder, if any."""
    scratch = os.environ.get(SCRATCH_VARIABLE)
    return Path(scratch) / "blocked" if scratch and Path(scratch).is_dir() else None


def end_if_blocked(
    loop: asyncio.AbstractEventLoop, limits: Any, end: Callable[[str], object], sampler: str | None = None
) -> None:
    """Call `end` with a reason if `loop`, which runs in this thread, does nothing else for `limits.step_seconds`. A
    model that samples in the loop, in the file `sampler`, a debugger, and calls without a limit, which run in the loop,
    may take as long as they want."""
    if None in (limits.step_seconds, limits.call_seconds):
        return
    thread, seconds = threading.get_ident(), float(limits.step_seconds)

    def blocked() -> bool:
        answered = threading.Event()
        loop.call_soon_threadsafe(answered.set)
        pieces = (answered.wait(seconds / PIECES) or not loop.is_running() or ATTACHED.is_set() for _ in range(PIECES))
        return not any(pieces)

    def watch() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while True:
                if loop.is_running() and blocked():
                    frame = sys._current_frames().get(thread)
                    stack = [*traceback.walk_stack(frame)]
                    if sampler not in [inner.f_code.co_filename for inner, _ in stack]:
                        reason = f"a workflow ran {seconds:g} s between two effects{user_line(stack)}"
                        remedy = "Slow work belongs into `team.call`, or raise marl.rollout.step_seconds"
                        end(f"{reason}; it may not terminate. {remedy}")
                time.sleep(seconds / PIECES)

    threading.Thread(target=watch, name="marl-verl blocked", daemon=True).start()


def end_process(reason: str) -> None:
    """End this process, and with it the run."""
    with contextlib.suppress(ValueError, OSError):  # the disk is full, standard error is closed
        if (file := reason_file()) is not None:
            file.write_text(reason)
        faulthandler.dump_traceback()
    os._exit(1)
