"""Run a workflow's calls without blocking other runs, and record their results."""

import asyncio
import contextvars
import dataclasses
import inspect
import json
import os
import pdb
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from marl_verl import threads
from marl_verl.episode.journal import CallRecord, Raised

ATTACHED = threading.Event()  # set once a debugger has stopped this process
_prompt = threading.RLock()  # one thread at a time reads the terminal


class Limit(asyncio.Timeout):  # type: ignore[misc]
    """As `asyncio.timeout(seconds)`, ignored in a process that is being debugged."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def _on_timeout(self) -> None:
        if not ATTACHED.is_set():
            super()._on_timeout()  # type: ignore[misc]


@contextmanager
def breakpoints(stopped: Callable[[], object] | None) -> Iterator[None]:
    """In this context `breakpoint()` calls `stopped` and opens a prompt; with None it does nothing.

    The first one marks the process as being debugged, for its whole life: limits that expire from then on are ignored.
    PYTHONBREAKPOINT chooses another debugger, as everywhere in Python.
    """
    previous = sys.breakpointhook

    def stop(*arguments: Any, **options: Any) -> Any:
        if stopped is None:
            return None
        ATTACHED.set()
        stopped()
        if os.environ.get("PYTHONBREAKPOINT") or previous is not sys.__breakpointhook__:
            return previous(*arguments, **options)
        return _Debugger(nosigint=True).set_trace(sys._getframe(1))

    sys.breakpointhook = stop
    try:
        yield
    finally:
        sys.breakpointhook = previous


class _Debugger(pdb.Pdb):
    """`quit` ends the run, as Ctrl-C does: an exception in the code at hand would only fail an episode."""

    _quits = False

    def interaction(self, *arguments: Any) -> None:
        with _prompt:
            super().interaction(*arguments)
        if self._quits:  # not earlier: the prompt ignores Ctrl-C
            signal.raise_signal(signal.SIGINT)

    def do_quit(self, argument: str) -> bool:
        self._quits = True
        self.set_continue()
        return True

    do_q = do_exit = do_EOF = do_quit  # type: ignore[assignment]


IN_PROGRESS: list[float] = []  # when the calls of `in_thread` began that are awaited


async def recorded(
    fn: Callable[..., Any], arguments: Sequence[Any], asked: CallRecord, seconds: float | None
) -> tuple[CallRecord, Exception | None]:
    """Call `fn` and return (`asked` with its result or exception, the exception or None). An exception, usually a
    TypeError or ValueError, if the result is not a JSON value."""
    try:
        value = await perform(fn, arguments, seconds)
    except Exception as error:  # noqa: BLE001  (recorded, and raised in the workflow)
        return dataclasses.replace(asked, raised=Raised.of(error)), error
    return dataclasses.replace(asked, value=as_json(value)), None


async def perform(fn: Callable[..., Any], arguments: Sequence[Any], seconds: float | None = None) -> Any:
    """Return the result of `fn(*arguments)`, awaited if it is awaitable; its SystemExit becomes a RuntimeError.

    With a limit of `seconds`, which raises TimeoutError, a synchronous function runs in its own daemon thread. Python
    cannot stop a thread, so the function continues after a timeout; it does not keep the process alive.
    """
    limit = Limit(seconds)
    try:
        async with limit:  # calling an async function only creates its coroutine, which needs no thread
            here = seconds is None or is_async(fn)
            return await _awaited(_plainly(fn, arguments) if here else await in_thread(fn, arguments))
    except TimeoutError as error:
        if not limit.expired():
            raise  # raised by `fn` itself
        raise TimeoutError(f"it took longer than {seconds:g} s") from error


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function is an `async def`; also checks functools.partial and an object's `__call__`."""
    fn = getattr(fn, "func", fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _plainly(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    try:
        return fn(*arguments)
    except (SystemExit, StopIteration) as error:  # they would end the event loop, or never reach a future
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


async def _awaited(value: Any) -> Any:
    """A value, or the result of an awaitable."""
    try:
        return await value if inspect.isawaitable(value) else value
    except SystemExit as error:  # as in `_plainly`
        raise RuntimeError(f"SystemExit: {error}") from error


async def in_thread(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Run a synchronous function in a daemon thread: an executor's threads would keep the process alive."""
    context, begun = contextvars.copy_context(), time.monotonic()
    IN_PROGRESS.append(begun)
    try:
        work = threads.in_thread("marl-verl call", lambda: context.run(_plainly, fn, arguments))
        return await asyncio.wrap_future(work)
    finally:
        IN_PROGRESS.remove(begun)


def as_json(value: Any) -> str:
    """The canonical JSON text of a value: sorted keys, dataclasses and pydantic models as mappings. TypeError else."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=_dataclass)


def _dataclass(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "model_dump") and not isinstance(value, type):  # of pydantic
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def function_name(fn: Any) -> str:
    """ "module:qualified name" of a function, or of the class of a callable object."""
    fn = getattr(fn, "func", fn)  # functools.partial
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    module = getattr(named, "__module__", None) or "builtins"  # methods of built-in types have no module
    return f"{module}:{named.__qualname__}"
