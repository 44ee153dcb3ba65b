"""Helpers of the checks: errors for arguments of the wrong type, and policies that fail."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from marl_verl.errors import MarlError


class SwitchedOff(ConnectionError):
    """The error of a policy request that a check makes fail."""


def must(holds: Any, message: str) -> None:
    """Raise AssertionError with a message unless a condition holds."""
    if not holds:
        raise AssertionError(message)


def instance(given: object, kind: type[Any], write: str) -> None:
    """Raise MarlError unless `given` is a `kind`; `write` is an example of a correct argument."""
    if isinstance(given, kind):
        return
    if isinstance(given, type) and issubclass(given, kind):
        name = given.__name__
        raise MarlError(f"expected an instance of {kind.__name__}, got the class: write {name}() instead of {name}")
    got = "the name" if isinstance(given, str) else type(given).__name__
    raise MarlError(f"expected a {kind.__name__}, got {got} {given!r:.60}: write {write}")


def awaitable(work: Any, what: str) -> Awaitable[Any]:
    """The return value of a call, if it is awaitable; otherwise AssertionError."""
    must(inspect.isawaitable(work), f"{what} must be an `async def`; it returned {work!r:.60}")
    return work  # type: ignore[no-any-return]


def lets_out(error: BaseException | None) -> bool:
    """Whether an error is, contains, or was raised from a `SwitchedOff`."""
    if isinstance(error, BaseExceptionGroup):
        return any(lets_out(each) for each in error.exceptions)
    return error is not None and (isinstance(error, SwitchedOff) or lets_out(error.__cause__))
