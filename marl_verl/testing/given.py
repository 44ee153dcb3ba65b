"""What the checks have in common: errors for arguments of a wrong kind, and policies that are switched off."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any

from marl_verl.errors import MarlError


class SwitchedOff(ConnectionError):
    """How a policy fails that a check has switched off."""


def must(holds: Any, message: str) -> None:
    """AssertionError unless it holds."""
    if not holds:
        raise AssertionError(message)


def instance(given: object, kind: type[Any], write: str) -> None:
    """MarlError unless it is an instance of a kind, with what to `write` instead."""
    if isinstance(given, kind):
        return
    if isinstance(given, type) and issubclass(given, kind):
        name = given.__name__
        raise MarlError(f"a {kind.__name__} is needed, and this is its class: write {name}() instead of {name}")
    raise MarlError(f"a {kind.__name__} is needed, got {type(given).__name__} {given!r:.60}: write {write}")


def awaitable(work: Any, what: str) -> Awaitable[Any]:
    """What a call gave, if it can be awaited; AssertionError if not."""
    must(inspect.isawaitable(work), f"{what} must be an `async def`; called, it gave {work!r:.60}")
    return work  # type: ignore[no-any-return]


def lets_out(error: BaseException | None) -> bool:
    """Whether an error is, holds, or was raised from that of a policy that was switched off."""
    if isinstance(error, BaseExceptionGroup):
        return any(lets_out(each) for each in error.exceptions)
    return error is not None and (isinstance(error, SwitchedOff) or lets_out(error.__cause__))
