"""Calling somebody else's function from the event loop, so that a slow one holds up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any


async def perform(fn: Callable[..., Any], arguments: Sequence[Any], seconds: float | None = None) -> Any:
    """The result of `fn(*arguments)`, awaited where it is awaitable.

    Args:
        seconds: time limit. With one, a plain function runs in a thread of its own, which goes on after the limit
            until it ends by itself (it does not keep the process alive): nothing can stop a thread from outside.

    Raises:
        TimeoutError: the limit is reached.
        Exception: what `fn` raised; RuntimeError for what is no Exception, such as a tool's `sys.exit`.
    """
    if seconds is None:
        value = _plainly(fn, arguments)
        return await _told(value) if inspect.isawaitable(value) else value
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            # an async function only makes its coroutine when called: no thread for that
            value = fn(*arguments) if is_async(fn) else await _in_thread(fn, arguments)
            return await _told(value) if inspect.isawaitable(value) else value
    except TimeoutError as error:
        if not limit.expired():
            raise  # its own
        raise TimeoutError(f"it took longer than {seconds:g} s") from error


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function is an `async def`; also behind functools.partial, and as the `__call__` of an object."""
    fn = getattr(fn, "func", fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _plainly(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call it. What is no Exception would end the event loop, or pass for a cancellation."""
    try:
        return fn(*arguments)
    except (SystemExit, StopIteration, asyncio.CancelledError, GeneratorExit) as error:
        raise _as_exception(error) from error


async def _told(value: Awaitable[Any]) -> Any:
    """Await it; a cancellation is one."""
    try:
        return await value
    except SystemExit as error:
        raise _as_exception(error) from error


def _as_exception(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {error}")


async def _in_thread(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(value: Any, error: BaseException | None) -> None:
        if done.done():
            return  # nobody waits for it any more
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def work() -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = context.run(_plainly, fn, arguments)
        except BaseException as raised:  # noqa: BLE001 - told to who awaits it
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits for it any more
            loop.call_soon_threadsafe(tell, value, error)

    # a daemon: an executor's threads would keep the process from ending
    threading.Thread(target=work, name="marl-verl call", daemon=True).start()
    return await done
