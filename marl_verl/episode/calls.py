"""Calling somebody else's function from the event loop, so that a slow one holds up nobody else."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any


async def perform(fn: Callable[..., Any], arguments: Sequence[Any], seconds: float | None = None) -> Any:
    """The result of `fn(*arguments)`, awaited where it is awaitable.

    Args:
        seconds: time limit. With one, a plain function runs in a thread of its own, which goes on after the limit
            until it ends by itself (it does not keep the process alive): nothing can stop a thread from outside.

    Raises:
        TimeoutError: the limit is reached.
        Exception: what `fn` raised.
    """
    if seconds is None:
        value = fn(*arguments)
        return await value if inspect.isawaitable(value) else value
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            # an async function only makes its coroutine when called: no thread for that
            value = fn(*arguments) if is_async(fn) else await _in_thread(fn, arguments)
            return await value if inspect.isawaitable(value) else value
    except TimeoutError as error:
        if not limit.expired():
            raise  # its own
        raise TimeoutError(f"it took longer than {seconds:g} s") from error


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function is an `async def`; also behind functools.partial, and as the `__call__` of an object."""
    fn = getattr(fn, "func", fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


async def _in_thread(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

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
            value = fn(*arguments)
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError(f"StopIteration: {stop}")
        except BaseException as raised:  # noqa: BLE001 - told to who awaits it
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, error)

    # a daemon: an executor's threads would keep the process from ending
    threading.Thread(target=work, name="marl-verl call", daemon=True).start()
    return await done
