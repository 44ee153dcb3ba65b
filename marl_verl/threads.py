"""Calls in threads, and limits of time."""

import asyncio
import contextvars
import ctypes
import inspect
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

from marl_verl.errors import user_line

ATTACHED = threading.Event()  # set once a debugger has stopped this process
PATIENCE = 5.0  # seconds until an exception is raised again in a thread that has not ended
K = TypeVar("K")
T = TypeVar("T")


@dataclass(eq=False)
class Call:
    """An awaited call of `call_in_thread`."""

    begun: float  # when it began, or went on
    waits: bool = False  # for the event loop, in `result_in`


_CALLS: list[Call] = []
_THREAD = threading.local()  # `call`: which a thread runs


def at_once(calls: Mapping[K, Callable[[], T]]) -> dict[K, T]:
    """Run calls concurrently and return their results. Waits for all, then raises the first error in order."""
    with ThreadPoolExecutor(max_workers=max(1, len(calls))) as threads:
        futures = {name: threads.submit(call) for name, call in calls.items()}
        return {name: future.result() for name, future in futures.items()}


def in_thread(name: str, call: Callable[[], T]) -> Future[T]:
    """Run a call in a daemon thread, which does not delay process exit. Returns a future of its result."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # it cannot be cancelled, because nothing can stop the call
    threading.Thread(target=_settle, args=(future, call), name=name, daemon=True).start()
    return future


def _settle(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised by `Future.result`
        future.set_exception(error)


_IDLE: list["queue.SimpleQueue[Any]"] = []  # of threads that wait for a call: starting one takes longer than most calls
os.register_at_fork(after_in_child=_IDLE.clear)  # a child process has no threads


def _serve(calls: "queue.SimpleQueue[Any]") -> None:
    while True:
        _settle(*calls.get())
        _IDLE.append(calls)


async def perform(fn: Callable[..., Any], arguments: Sequence[Any], seconds: float | None = None) -> Any:
    """Return the result of `fn(*arguments)`, awaited if it is awaitable; its SystemExit becomes a RuntimeError. With a
    limit of `seconds`, which raises TimeoutError, a synchronous function runs in its own daemon thread: it continues
    after a timeout, as Python cannot stop a thread, but does not keep the process alive."""
    async with Limit(seconds):
        here = seconds is None or is_async(fn)  # an async function only creates its coroutine, which needs no thread
        value = _plainly(fn, arguments) if here else await call_in_thread(fn, arguments)
        return await contained(value) if inspect.isawaitable(value) else value


async def call_in_thread(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a synchronous function in a daemon thread: an executor's threads would keep the process alive."""
    context, call, future = contextvars.copy_context(), Call(time.monotonic()), Future[Any]()
    try:
        calls = _IDLE.pop()
    except IndexError:
        calls = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(calls,), name="marl-verl call", daemon=True).start()

    def work() -> Any:
        _THREAD.call = call
        return context.run(_plainly, fn, arguments)

    _CALLS.append(call)
    future.set_running_or_notify_cancel()  # as `in_thread`
    calls.put((future, work))
    try:
        return await asyncio.wrap_future(future)
    finally:
        _CALLS.remove(call)


def result_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs in `loop`, for which a thread waits, and with it the thread's call."""
    call: Call | None = getattr(_THREAD, "call", None)

    async def awaited() -> T:
        if call is None:
            return await work
        call.waits = True
        try:
            return await work
        finally:
            call.begun, call.waits = time.monotonic(), False

    try:
        return asyncio.run_coroutine_threadsafe(awaited(), loop).result()
    except CancelledError as error:  # the run has ended: no `except Exception` of a framework may go on
        raise asyncio.CancelledError from error


def in_progress(seconds: float) -> bool:
    """Whether a call of `call_in_thread` that does not wait has been at work for less than so many seconds."""
    return any(not call.waits and time.monotonic() - call.begun < seconds for call in _CALLS)


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function is an `async def`; also checks functools.partial and an object's `__call__`."""
    fn = getattr(fn, "func", fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


async def contained(work: Awaitable[T]) -> T:
    """The result of an awaitable, whose SystemExit would end the event loop with all that runs in it."""
    try:
        return await work
    except SystemExit as error:
        raise RuntimeError(f"SystemExit: {error}") from error


def _plainly(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return fn(*arguments)
    except (SystemExit, StopIteration) as error:  # they would end the event loop, or never reach a future
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


class Limit(asyncio.Timeout):  # type: ignore[misc]
    """As `asyncio.timeout(seconds)`, ignored in a process that is being debugged; `message` is that of its error."""

    def __init__(self, seconds: float | None, message: str = "it took longer than {:g} s") -> None:
        super().__init__(None if seconds is None else asyncio.get_running_loop().time() + seconds)
        self._message = "" if seconds is None else message.format(seconds)

    async def __aexit__(self, *raised: Any) -> None:
        try:
            await super().__aexit__(*raised)
        except TimeoutError as error:
            raise TimeoutError(self._message) from error

    def _on_timeout(self) -> None:
        if not ATTACHED.is_set():
            super()._on_timeout()  # type: ignore[misc]


@contextmanager
def without_breakpoints() -> Iterator[None]:
    """In this context `breakpoint()` does nothing."""
    previous, sys.breakpointhook = sys.breakpointhook, lambda *_, **__: None
    try:
        yield
    finally:
        sys.breakpointhook = previous


def outside_loop(call: Callable[[], T]) -> T:
    """Run a call that runs an event loop; in another thread if this one already runs a loop (a notebook). An exception
    of this thread, such as KeyboardInterrupt, is then raised in the other one, which is awaited."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    threads: list[int] = []

    def work() -> T:
        threads.append(threading.get_ident())
        return call()

    future = in_thread("marl-verl", work)
    try:
        while not future.done():
            wait([future], timeout=0.2)  # not forever: a signal that another thread receives does not wake this one
        return future.result()
    except BaseException as error:
        while not future.done():
            for thread in threads:
                raise_in(thread, type(error))
            wait([future], timeout=PATIENCE)
        raise


def raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an exception at the next line of Python of another thread."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


class TimeUp(BaseException):
    """Raised in code that exceeds a `time_limit`; not an Exception, so that most code does not catch it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeUp, with the line that was running, in a block that takes longer; again every second if it is caught.
    Only in the main thread, which a signal interrupts also where it waits in C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    lines: list[str] = []

    def up(_: int, frame: FrameType | None) -> None:
        lines.append(user_line(traceback.walk_stack(frame)))
        raise TimeUp(lines[0])

    before = signal.signal(signal.SIGALRM, up)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    except BaseException as error:
        if lines:  # code of others may have made another exception of it
            raise TimeUp(lines[0]) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)  # restores a limit of the caller
        signal.signal(signal.SIGALRM, before)
