"""Run a workflow's calls without blocking other runs, and record their results."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import inspect
import json
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from marl_verl.episode.journal import CallRecord, Raised, find_class
from marl_verl.episode.watchdog import StepTooLong, is_ctrl_c
from marl_verl.errors import message_of


async def recorded(
    fn: Callable[..., Any], arguments: Sequence[Any], asked: CallRecord, seconds: float | None
) -> tuple[CallRecord, Exception | None]:
    """Call `fn` and return (`asked` with its result or exception, the exception or None).

    Raises:
        Exception: the result is not a JSON value, usually a TypeError or ValueError.
    """
    try:
        value = await perform(fn, arguments, seconds)
    except Exception as error:  # noqa: BLE001  (recorded, and raised in the workflow)
        return dataclasses.replace(asked, raised=raised(error)), error
    return dataclasses.replace(asked, value=as_json(value)), None


async def perform(fn: Callable[..., Any], arguments: Sequence[Any], seconds: float | None = None) -> Any:
    """Return the result of `fn(*arguments)`, awaited if it is awaitable.

    Args:
        seconds: time limit. With a limit, a synchronous function runs in its own daemon thread. Python cannot stop a
            thread, so the function continues after a timeout; it does not keep the process alive.

    Raises:
        TimeoutError: the limit is reached.
        Exception: raised by `fn`; a BaseException such as SystemExit is converted to RuntimeError.
    """
    if seconds is None:
        return await _awaited(_plainly(fn, arguments))
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            # calling an async function only creates its coroutine, which needs no thread
            return await _awaited(fn(*arguments) if is_async(fn) else await in_thread(fn, arguments))
    except TimeoutError as error:
        if not limit.expired():
            raise  # raised by `fn` itself
        raise TimeoutError(f"it took longer than {seconds:g} s") from error


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether a function is an `async def`; also checks functools.partial and an object's `__call__`."""
    fn = getattr(fn, "func", fn)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _plainly(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Call a function; a BaseException, which would end the event loop or look like a cancellation, is converted."""
    try:
        return fn(*arguments)
    except StopIteration as error:
        raise _harmless(error) from error
    except (Exception, StepTooLong):
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise _harmless(error) from error


async def _awaited(value: Any) -> Any:
    """A value, or the result of an awaitable; CancelledError propagates."""
    if not inspect.isawaitable(value):
        return value
    try:
        return await value
    except (Exception, asyncio.CancelledError, StepTooLong, GeneratorExit):
        raise
    except BaseException as error:
        if is_ctrl_c(error):
            raise
        raise _harmless(error) from error


def _harmless(error: BaseException) -> RuntimeError:
    return RuntimeError(f"{type(error).__name__}: {message_of(error)}")


async def in_thread(fn: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_: Callable[[Any], None], result: Any) -> None:
        if not done.done():  # otherwise the caller no longer waits
            set_(result)

    def work() -> None:
        outcome: tuple[Callable[[Any], None], Any]
        try:
            outcome = done.set_result, context.run(_plainly, fn, arguments)
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            outcome = done.set_exception, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: the caller no longer waits
            loop.call_soon_threadsafe(settle, *outcome)

    # a daemon thread: an executor's threads would keep the process alive
    threading.Thread(target=work, name="marl-verl call", daemon=True).start()
    return await done


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


def raised(error: Exception) -> Raised:
    """The record of an exception, from which a replay rebuilds it: the first class of its MRO that can be imported by
    name and rebuilt, its arguments (their `repr` where they are not JSON values), its message and its attributes."""
    arguments = [shown_value(argument) if (text := json_text(argument)) is None else text for argument in error.args]
    attributes = {name: text for name, value in _attributes(error) if (text := json_text(value)) is not None}
    kinds = [(f"{base.__module__}:{base.__qualname__}", base) for base in type(error).__mro__]
    for name, _ in [each for each in kinds if find_class(each[0]) is each[1]]:
        values = ", ".join(f"{json.dumps(key)}: {text}" for key, text in sorted(attributes.items()))
        found = Raised(name, f"[{', '.join(arguments)}]", message_of(error), f"{{{values}}}")
        with contextlib.suppress(Exception):  # e.g. an ExceptionGroup needs exceptions as arguments
            found.rebuild()
            return found
    raise AssertionError("an exception is an Exception")


def _attributes(error: Exception) -> Iterator[tuple[str, Any]]:
    """Public attributes of an exception: those that were set, and those that its classes declare as slots."""
    slots = (types.MemberDescriptorType, types.GetSetDescriptorType)
    declared = [name for kind in type(error).__mro__ for name, value in vars(kind).items() if isinstance(value, slots)]
    for name in dict.fromkeys([*vars(error), *declared]):
        if not name.startswith("_") and name != "args":
            with contextlib.suppress(Exception):  # not set
                yield name, getattr(error, name)


def json_text(value: Any) -> str | None:
    """`as_json`, or None for a value that is not a JSON value."""
    try:
        return as_json(value)
    except Exception:  # noqa: BLE001 - code of users, e.g. of a dataclass
        return None


def shown_value(value: Any) -> str:
    """The `repr` of a value as JSON text; its class where `repr` raises."""
    try:
        return json.dumps(repr(value), ensure_ascii=False)
    except Exception:  # noqa: BLE001 - code of users
        return json.dumps(f"<{type(value).__name__}>")
