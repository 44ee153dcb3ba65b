"""Ends a process whose event loop is blocked, with its stack: by an endless loop or slow code between two effects."""

import asyncio
import contextlib
import faulthandler
import os
import sys
import threading
import time
from pathlib import Path

from marl_verl.events import SCRATCH_VARIABLE
from marl_verl.threads import current_line

PIECES = 20
"""Waits per limit: a process that was stopped meanwhile has waited for one of them only."""


def reason_file() -> Path | None:
    """Where the reason is written for the trainer, which sees this process die: in the run's scratch folder, if any."""
    scratch = os.environ.get(SCRATCH_VARIABLE)
    return Path(scratch) / "blocked" if scratch and Path(scratch).is_dir() else None


def end_if_blocked(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """End this process, and with it the run, if `loop`, which runs in this thread, does nothing else for `seconds`."""
    thread = threading.get_ident()

    def watch() -> None:
        while not loop.is_closed():
            answered = threading.Event()
            loop.call_soon_threadsafe(answered.set)
            if not any(answered.wait(seconds / PIECES) for _ in range(PIECES)):
                _end(current_line(sys._current_frames().get(thread)), seconds)
            time.sleep(seconds / PIECES)

    threading.Thread(target=watch, name="marl-verl blocked", daemon=True).start()


def _end(line: str, seconds: float) -> None:
    reason = f"a workflow ran {seconds:g} s between two effects{line}; it may not terminate"
    with contextlib.suppress(ValueError, OSError):  # the disk is full, standard error is closed
        if (file := reason_file()) is not None:
            file.write_text(f"{reason}. Slow work belongs into `team.call`, or raise marl.rollout.step_seconds")
        faulthandler.dump_traceback()
    os._exit(1)
