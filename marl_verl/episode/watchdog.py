"""The watchdog: ends a workflow that runs too long between two effects and thereby blocks its event loop.

Every task of a watched run is wrapped to mark the begin and end of its steps (code without an await). One thread per
event loop polls the marks; if a step takes longer than `Limits.step_seconds` without an effect, the thread raises
`StepTooLong` inside that step, and the run ends with `StepTimeout`. The exception must never land outside the step:

    step ends:    step = None;         then check `bitten`;  if set: acquire the lock, withdraw an undelivered exception
    watchdog:     acquire the lock;    bitten = True;        then check `step`;  if still the same: raise

In a watched step `time.sleep` sleeps in short pieces, so that it can be interrupted.

Limitations: another call into C (a regular expression that backtracks, a request) is interrupted only when it returns;
a loop with a bare `except:` is not ended, though the watchdog tries again every second; a lock that the workflow
acquired without `with` stays held.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
import time
import traceback
import types
import weakref
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, SupportsIndex

from marl_verl.episode import lanes
from marl_verl.episode.errors import at_line

WATCHDOG = "marl-verl watchdog"  # name of its thread
POLLS = 20  # polls per `step_seconds`: a step is ended after 1 to 1 + 2 / POLLS times that
PIECE = 0.1  # seconds of `time.sleep` in a step that cannot be interrupted
AGAIN = 1.0  # seconds until the exception is raised again in a step that caught it

# a separate prototype, since any code may set the argument types of the shared one
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_sleep = time.sleep
_NOTHING = ctypes.py_object()  # NULL: withdraws an undelivered exception


class StepTooLong(BaseException):
    """Raised inside a step by the watchdog; a BaseException, so that `except Exception` does not catch it."""


def is_ctrl_c(error: BaseException) -> bool:
    """Whether an exception may be a true Ctrl-C, which Python raises in the main thread only."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class WatchedRun(Protocol):
    """The interface of a run to the watchdog; `parked`: a task catches even cancellations and would never end."""

    parked: bool

    def stuck(self, where: str) -> Exception: ...

    def exited(self, error: BaseException) -> Exception: ...


class Watchdog:
    """Watches the steps of one event loop; must be created in the loop's thread. Without `seconds` it only converts
    exceptions that would end the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        self.step: WatchedRun | None = None  # the run whose step is executing
        self.steps = 0  # incremented at every step and effect, so that it identifies a piece of code
        self.bitten = False  # whether an exception was raised in the current step
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._loop = weakref.ref(loop)
        self._run: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("marl_verl_run", default=None)
        before = loop.get_task_factory()

        def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            if (run := self._run.get()) is not None:
                work, options = _Watched(work, self, run), lanes.placed(loop, options)
            return asyncio.Task(work, loop=loop, **options) if before is None else before(loop, work, **options)

        loop.set_task_factory(make)
        if seconds is not None:
            threading.Thread(target=self._watch, args=(seconds,), name=WATCHDOG, daemon=True).start()
            time.sleep = sleep

    def start(self, run: WatchedRun, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Create a task; its steps, and those of every task that it starts, are watched as steps of the run."""
        context = contextvars.copy_context()
        context.run(self._run.set, run)
        context.run(lanes.begin)
        return context.run(asyncio.create_task, work)  # the task factory reads the run from the context

    def settle(self) -> None:
        """Withdraw an undelivered exception at the end of a step, and raise StepTooLong if there was one."""
        with self._lock:
            _raise_in(self._thread, _NOTHING)
            bitten, self.bitten = self.bitten, False
        if bitten:
            raise StepTooLong

    def uninterrupted(self, do: Callable[..., Any], *given: Any) -> None:
        """Call a function within a step, but never raise in it: in `Future.set_result`, that would lose the callbacks,
        and who waits for the future would wait for ever. An exception that is due is raised before."""
        step, self.step = self.step, None
        if self.bitten:
            self.settle()
        try:
            do(*given)
        finally:
            self.steps += 1
            self.step = step

    def _watch(self, seconds: float) -> None:
        """Poll until the loop is closed or deleted. A poll counts for at most two pauses: while the process is stopped,
        or a call into C holds the GIL, the workflow's code does not run."""
        pause = seconds / POLLS
        before, seen, limit, last = (self.step, self.steps), 0.0, seconds, time.monotonic()
        while (loop := self._loop()) is not None and not loop.is_closed():
            del loop
            _sleep(pause)
            now, there = time.monotonic(), (self.step, self.steps)
            passed, last = min(now - last, 2 * pause), now
            if there[0] is None or there != before:
                before, seen, limit = there, 0.0, seconds
                continue
            seen += passed
            if seen < limit:
                continue
            limit = seen + AGAIN
            with self._lock:
                self.bitten = True
                if (self.step, self.steps) == there:
                    _raise_in(self._thread, StepTooLong)
                else:
                    self.bitten = False


def sleep(seconds: float | SupportsIndex) -> None:
    """`time.sleep`; in a watched step in pieces, since Python raises an exception between two instructions only."""
    loop = asyncio._get_running_loop()
    if loop is None or not any(dog.step for dog in _watchdogs.get(loop, {}).values()):
        return _sleep(seconds)
    until = time.monotonic() + float(seconds)
    while (left := until - time.monotonic()) > PIECE:
        _sleep(PIECE)
    return _sleep(max(left, 0.0))


class _Watched(Coroutine[Any, Any, Any]):
    """The coroutine of a task, wrapped to mark begin and end of its steps."""

    __slots__ = ("_run", "_watch", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], watch: Watchdog, run: WatchedRun) -> None:
        self._work, self._watch, self._run = work, watch, run

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        asked = self._step(self._work.throw, *error)
        if self._run.parked:  # the task catches cancellations and would never end
            raise asyncio.CancelledError
        return asked

    def _step(self, go: Callable[..., Any], *given: Any) -> Any:
        watch = self._watch
        watch.steps += 1  # before `step`, so that the watchdog does not mistake this step for the previous one
        watch.step = self._run
        try:
            try:
                return go(*given)
            finally:
                watch.step = None
                if watch.bitten:
                    watch.settle()
        except StepTooLong as bite:
            watch.bitten = False  # if the exception was delivered before `settle`, there is nothing to withdraw
            first: BaseException = bite
            while isinstance(first.__context__, StepTooLong):  # `settle` raised after it
                first = first.__context__
            frames = [each for each in traceback.extract_tb(first.__traceback__) if each.filename != __file__]
            raise self._run.stuck(at_line(frames[-1]) if frames else "") from bite
        except (SystemExit, KeyboardInterrupt) as error:  # would end the event loop and all of its runs
            if is_ctrl_c(error):
                raise
            raise self._run.exited(error) from error

    def close(self) -> None:
        self._work.close()

    @property
    def cr_await(self) -> object:  # as of a coroutine that awaits the work, for those who look for its line
        return self._work

    @property
    def __name__(self) -> str:  # asyncio shows it with the task
        return str(getattr(self._work, "__qualname__", "task"))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


@types.coroutine
def forever() -> Generator[Any, None, None]:
    """Never return. Without a running loop the coroutine is being deallocated, which a yield ends."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield None
    else:
        yield from loop.create_future()


_watchdogs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float | None, Watchdog]] = (
    weakref.WeakKeyDictionary()
)


def watchdog(seconds: float | None) -> Watchdog:
    """The running loop's watchdog for steps of at most `seconds` (None: of any length)."""
    loop = asyncio.get_running_loop()
    found = _watchdogs.setdefault(loop, {})
    if seconds not in found:
        found[seconds] = Watchdog(loop, seconds)
    return found[seconds]
