"""Helpers of the checks: errors for arguments of the wrong type, policies that fail, and values that differ."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marl_verl import threads
from marl_verl.episode.turn import shared_length
from marl_verl.errors import MarlError
from marl_verl.testing.hash_seeds import elsewhere

SECONDS = 120.0  # of a check, with its imports
SHOWN = 160  # maximum number of characters of a value in an error
BEFORE = 40  # of which so many come before a difference


class SwitchedOff(ConnectionError):
    """The error of a policy request that a check makes fail."""


def must(holds: Any, message: str) -> None:
    """Raise AssertionError with a message unless a condition holds."""
    if not holds:
        raise AssertionError(message)


@contextmanager
def time_limit(what: str, seconds: float) -> Iterator[None]:
    """Raise AssertionError with the line that was running if the block takes longer; none in another thread."""
    try:
        with threads.time_limit(seconds):
            yield
    except threads.TimeUp as up:
        raise AssertionError(f"{what} is not done after {seconds:g} s: it hangs{up}") from up


def instance(given: object, kind: type[Any], write: str) -> None:
    """Raise MarlError unless `given` is a `kind`; `write` is an example of a correct argument."""
    if isinstance(given, kind):
        return
    if isinstance(given, type) and issubclass(given, kind):
        name = given.__name__
        raise MarlError(f"expected an instance of {kind.__name__}, got the class: write {name}() instead of {name}")
    got = "the name" if isinstance(given, str) else type(given).__name__
    raise MarlError(f"expected a {kind.__name__}, got {got} {given!r:.60}: write {write}")


def both(one: Any, two: Any) -> str:
    """Two values that differ, from shortly before their first difference: "first 'a', now 'b'"."""
    texts = [value if isinstance(value, str) else repr(value) for value in (one, two)]
    begin = max(0, shared_length(*texts) - BEFORE) if max(map(len, texts)) > SHOWN else 0
    if texts[0] == texts[1]:
        return f"first {texts[0]:.{SHOWN}}, now another object of the same repr: compare texts or numbers"
    cut = [("..." if begin else "") + text[begin:][:SHOWN] + ("..." if text[begin + SHOWN :] else "") for text in texts]
    return f"first {cut[0]}, now {cut[1]}"


def same_elsewhere(compute: Callable[[], list[str]], mine: list[str], what: str) -> None:
    """Raise AssertionError if `compute()` is not `mine` in a process with another hash seed."""
    for setting, theirs in elsewhere(compute, what):
        if mine != theirs:
            pairs = zip(mine, theirs, strict=False)
            one, two = next(((a, b) for a, b in pairs if a != b), (f"{len(mine)} results", f"{len(theirs)} results"))
            raise AssertionError(f"{what} differs with {setting}: {both(one, two)}. Sort what is read from a set.")


def awaitable(work: Any, what: str) -> Awaitable[Any]:
    """The return value of a call, if it is awaitable; otherwise AssertionError."""
    must(inspect.isawaitable(work), f"{what} must be an `async def`; it returned {work!r:.60}")
    return work  # type: ignore[no-any-return]


def lets_out(error: BaseException | None) -> bool:
    """Whether an error is, contains, or was raised from a `SwitchedOff`."""
    if isinstance(error, BaseExceptionGroup):
        return any(lets_out(each) for each in error.exceptions)
    return error is not None and (isinstance(error, SwitchedOff) or lets_out(error.__cause__))
