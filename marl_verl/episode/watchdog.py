"""The watchdog: ends a workflow that runs for ever between two effects, and so holds up all runs of its event loop.

Every task of a watched run is wrapped, which marks begin and end of its steps (stretches without an await). One thread
per event loop polls the marks; where one step takes longer than `Limits.step_seconds` without an effect, it raises
`StepTooLong` inside that step, and the run ends as `StepTimeout`. The exception must never land outside the step:

    step ends:    step = None;    then look at `bitten`;   if set: take the lock, take back what was not yet delivered
    watchdog:     take the lock;  bitten = True;           then look at `step`;  if still the same: raise

Limits: a call into C (`time.sleep(1000)`, a regular expression that backtracks) is interrupted only when it returns; a
loop that catches everything (`except:`) is not ended, though it is tried every second; a lock that the workflow holds
without `with` stays held.
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
from typing import Any, Protocol

from marl_verl.episode.errors import at_line

POLLS = 20  # looks at the marks in `step_seconds`: a step is ended when it has taken 1 to 1 + 2 / POLLS of that
AGAIN = 1.0  # seconds until a step that has survived is bitten again

# a prototype of its own: the shared one's argument types are anybody's to set
_raise_in = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(
    ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
)
_NOTHING = ctypes.py_object()  # NULL: takes back what is not delivered


class StepTooLong(BaseException):
    """Raised inside a step by the watchdog. No Exception, so that a workflow's `except Exception` does not catch it."""


class WatchedRun(Protocol):
    """What the watchdog needs of a run; `parked`: a task of it catches even cancellations, and would never end."""

    parked: bool

    def stuck(self, where: str) -> Exception: ...


class Watchdog:
    """Watches the steps of one event loop; made in the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self.step: WatchedRun | None = None  # the run that is stepped now
        self.steps = 0  # grows with every step and every effect: the same number is the same stretch of code
        self.bitten = False  # an exception was raised in the present step
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._seconds = seconds
        self._loop = weakref.ref(loop)
        self._run: contextvars.ContextVar[WatchedRun | None] = contextvars.ContextVar("marl_verl_run", default=None)
        before = loop.get_task_factory()

        def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            if (run := self._run.get()) is not None:
                work = _Watched(work, self, run)
            return asyncio.Task(work, loop=loop, **options) if before is None else before(loop, work, **options)

        loop.set_task_factory(make)
        threading.Thread(target=self._watch, name="marl-verl watchdog", daemon=True).start()

    def start(self, run: WatchedRun, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task whose steps, and those of every task that it starts, are watched as the run's."""
        context = contextvars.copy_context()
        context.run(self._run.set, run)
        return context.run(asyncio.create_task, work)  # in the context: the factory looks there

    def settle(self) -> None:
        """At the end of a bitten step: from here on nothing of it can be delivered. StepTooLong if it was bitten."""
        with self._lock:
            _raise_in(self._thread, _NOTHING)
            bitten, self.bitten = self.bitten, False
        if bitten:
            raise StepTooLong

    def _watch(self) -> None:
        """Until the loop is closed or gone. A look counts for at most two pauses: a process that was stopped, or a call
        into C that kept the interpreter to itself, has not run the workflow's code meanwhile."""
        pause = self._seconds / POLLS
        before, seen, limit, last = (self.step, self.steps), 0.0, self._seconds, time.monotonic()
        while (loop := self._loop()) is not None and not loop.is_closed():
            del loop
            time.sleep(pause)
            now, there = time.monotonic(), (self.step, self.steps)
            passed, last = min(now - last, 2 * pause), now
            if there[0] is None or there != before:
                before, seen, limit = there, 0.0, self._seconds
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


class _Watched(Coroutine[Any, Any, Any]):
    """A task's coroutine, with begin and end of its steps marked."""

    __slots__ = ("_run", "_watch", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], watch: Watchdog, run: WatchedRun) -> None:
        self._work, self._watch, self._run = work, watch, run

    def send(self, value: Any) -> Any:
        return self._step(self._work.send, value)

    def throw(self, *error: Any) -> Any:
        asked = self._step(self._work.throw, *error)
        if self._run.parked:  # it catches cancellations, and would never end
            raise asyncio.CancelledError
        return asked

    def _step(self, go: Callable[..., Any], *given: Any) -> Any:
        watch = self._watch
        watch.steps += 1  # before `step`: the watchdog must not take this step for the last one
        watch.step = self._run
        try:
            try:
                return go(*given)
            finally:
                watch.step = None
                if watch.bitten:
                    watch.settle()
        except StepTooLong as bite:
            watch.bitten = False  # where the exception came before `settle`, nothing is left to take back
            first: BaseException = bite
            while isinstance(first.__context__, StepTooLong):  # `settle` raised after it
                first = first.__context__
            frames = [each for each in traceback.extract_tb(first.__traceback__) if each.filename != __file__]
            raise self._run.stuck(at_line(frames[-1]) if frames else "") from bite

    def close(self) -> None:
        self._work.close()

    @property
    def __name__(self) -> str:  # asyncio shows it with the task
        return str(getattr(self._work, "__qualname__", "task"))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()


@types.coroutine
def forever() -> Generator[Any, None, None]:
    """Never return. Without a running loop the task's coroutine is being deallocated: a yield ends that."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield None
    else:
        yield from loop.create_future()


_watchdogs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[float, Watchdog]] = weakref.WeakKeyDictionary()


def watchdog(seconds: float) -> Watchdog:
    """The running loop's watchdog for steps of so many seconds."""
    loop = asyncio.get_running_loop()
    found = _watchdogs.setdefault(loop, {})
    if seconds not in found:
        found[seconds] = Watchdog(loop, seconds)
    return found[seconds]
