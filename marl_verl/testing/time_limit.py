"""The time limit of a check: endless loops, sleeps and waits are interrupted by a signal.

Imports do not count: a framework that a workflow imports may need a minute. They have a limit of their own.
Python runs signal handlers in the main thread only: a check that is called in another thread has no limit.
"""

from __future__ import annotations

import asyncio
import signal
import sys
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
IMPORT_SECONDS = 600.0  # of all imports of a check
TICK = 0.2  # seconds from one look at the clock to the next; code that caught the interruption gets it again after it


class _TimeUp(BaseException):
    """Raised in the code that does not end; not an Exception, so that most code does not catch it."""


class _Limit:
    """The clock of a check, which stands still while a module is imported or another process works."""

    def __init__(self, seconds: float, outer: set[types.FrameType]) -> None:
        self.seconds, self.outer = seconds, outer
        self.spent = self.importing = 0.0
        self.phase, self.paused = "", False
        self.where: str | None = None  # where the time was up
        self._last = time.monotonic()

    def tick(self, _: int, frame: types.FrameType | None) -> None:
        now = time.monotonic()
        passed, self._last = now - self._last, now
        if self.paused or _imports(self.outer):
            self.importing += passed
        else:
            self.spent += passed
        if self.spent >= self.seconds or self.importing >= IMPORT_SECONDS:
            self.where = self.where or _place(frame)
            raise _TimeUp

    def error(self, name: str) -> AssertionError:
        """What was not done, in which phase, and where."""
        at = f"{name}, {self.phase}," if self.phase else name
        if self.importing >= IMPORT_SECONDS:
            return AssertionError(f"{at} imports modules for more than {IMPORT_SECONDS:g} s{self.where}")
        besides = f" (and {self.importing:.0f} s of imports)" if self.importing >= 1 else ""
        return AssertionError(f"{at} is not done after {self.seconds:g} s{besides}: it hangs{self.where}")


_limits: list[_Limit] = []


def phase(name: str) -> None:
    """Name what a check does now, for the error of its time limit."""
    if _limits and threading.current_thread() is threading.main_thread():
        _limits[-1].phase = name


def seconds_left() -> float | None:
    """The time that a check has left; None without a limit."""
    in_main = threading.current_thread() is threading.main_thread()
    return max(_limits[-1].seconds - _limits[-1].spent, TICK) if _limits and in_main else None


@contextmanager
def paused() -> Iterator[None]:
    """Stop the clock while a check prepares other processes and waits for them: they have a limit of their own."""
    if seconds_left() is None:
        yield
        return
    limit = _limits[-1]
    limit.paused = True
    try:
        yield
    finally:
        limit.paused = False


@contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Raise AssertionError if the block is not done after `seconds` without its imports, with the line where it was."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limit = _Limit(seconds, {frame for frame, _ in traceback.walk_stack(sys._getframe())})
    before, begun = signal.signal(signal.SIGALRM, limit.tick), time.monotonic()
    tick = min(seconds, TICK)
    rest, interval = signal.setitimer(signal.ITIMER_REAL, tick, tick)
    failed: BaseException | None = None
    _limits.append(limit)
    try:
        yield
    except BaseException as error:
        failed = error
        if limit.where is None:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        _limits.remove(limit)
        signal.signal(signal.SIGALRM, before)
        if rest:  # a limit of the caller, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, max(rest - (time.monotonic() - begun), 0.001), interval)
    if limit.where is not None:
        raise limit.error(what) from failed


def _imports(outer: set[types.FrameType]) -> bool:
    """Whether a thread imports a module; `outer` are the frames around the check, which may be in an import itself."""
    stacks = (traceback.walk_stack(frame) for frame in sys._current_frames().values())
    return any(
        frame not in outer and frame.f_code.co_name == "_find_and_load" and frame.f_code.co_filename == _IMPORTING
        for stack in stacks
        for frame, _ in stack
    )


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
_IMPORTING = "<frozen importlib._bootstrap>"
