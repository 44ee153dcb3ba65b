"""The time limit of a check: endless loops, sleeps and waits are interrupted by a signal.

Python runs signal handlers in the main thread only: a check that is called in another thread has no limit.
"""

from __future__ import annotations

import asyncio
import signal
import sysconfig
import threading
import time
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marl_verl.episode.errors import at_line

SECONDS = 60.0
AGAIN = 0.2  # seconds until code that caught the interruption, or the next run, is interrupted again


class _TimeUp(BaseException):
    """Raised in the code that does not end; not an Exception, so that most code does not catch it."""


@contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Raise AssertionError if the block is not done after `seconds`, with the line where it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    where: list[str] = []

    def ring(_: int, frame: types.FrameType | None) -> None:
        where.append(_place(frame))
        raise _TimeUp

    before, begun = signal.signal(signal.SIGALRM, ring), time.monotonic()
    rest, interval = signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        if not where:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if rest:  # a limit of the caller, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, max(rest - (time.monotonic() - begun), 0.001), interval)
    if where:
        raise AssertionError(f"{what} is not done after {seconds:g} s: it hangs{where[0]}") from failed


def _place(frame: types.FrameType | None) -> str:
    """The line of the checked code, e.g. " (my_team.py, line 12)"; "" if there is none."""
    frames = [] if frame is None else list(traceback.walk_stack(frame))
    try:
        waiting = asyncio.current_task() is None  # an event loop without a task to run: all of them wait
    except RuntimeError:
        waiting = False
    if waiting:
        frames = [each for task in asyncio.all_tasks() for each in _awaited(task.get_coro())]
    for each, line in frames:
        if not each.f_code.co_filename.startswith(_OTHERS):
            return at_line(traceback.FrameSummary(each.f_code.co_filename, line, each.f_code.co_name))
    return ""


def _awaited(coroutine: object) -> list[tuple[types.FrameType, int]]:
    """The frames of a waiting coroutine, the innermost first."""
    found: list[tuple[types.FrameType, int]] = []
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None:
            found.insert(0, (frame, frame.f_lineno))
        coroutine = getattr(coroutine, "cr_await", None)
    return found


_OTHERS = (sysconfig.get_path("stdlib"), str(Path(__file__).parents[1]), "<frozen")
