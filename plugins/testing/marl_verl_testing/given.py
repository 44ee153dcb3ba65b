"""What the checks have in common: their errors and time limit, a failing policy, and the comparison of results."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from marl_verl import threads
from marl_verl.episode.turn import shared_length
from marl_verl_testing.hash_seeds import elsewhere

SECONDS = 120.0  # of a check, with its imports
SHOWN = 160  # maximum number of characters of a value in an error
BEFORE = 40  # of which so many come before a difference
ROUNDS = 100  # iterations of the event loop that cancelled tasks may take to end


class SwitchedOff(ConnectionError):
    """The error of a policy request that a check makes fail."""


def must(holds: Any, message: str) -> None:
    """Raise AssertionError with a message unless a condition holds."""
    if not holds:
        raise AssertionError(message)


@contextmanager
def time_limit(label: str, seconds: float) -> Iterator[None]:
    """Raise AssertionError with the line that was running if the block takes longer."""
    try:
        with threads.time_limit(seconds):
            yield
    except threads.TimeUp as up:
        raise AssertionError(f"{label} is not done after {seconds:g} s: it hangs{up}") from up


def same(first: Sequence[str], again: Sequence[str], label: str, error: type[Exception] = AssertionError) -> None:
    """Raise `error` if two results, as lines, differ: with the first difference, from shortly before it."""
    if list(first) == list(again):
        return
    pairs = zip(first, again, strict=False)
    texts = next((pair for pair in pairs if pair[0] != pair[1]), (f"{len(first)} lines", f"{len(again)} lines"))
    begin = max(0, shared_length(*texts) - BEFORE) if max(map(len, texts)) > SHOWN else 0
    before, now = (text[begin : begin + SHOWN] for text in texts)
    raise error(f"{label} differs: first {before}, now {now}")


def same_elsewhere(
    compute: Callable[[], list[str]], mine: list[str], label: str, error: type[Exception] = AssertionError
) -> None:
    """Raise `error` if `compute()` is not `mine` in a process with another hash seed."""
    if (theirs := elsewhere(compute, label)) is not None:
        same(
            mine, theirs, f"{label} with another PYTHONHASHSEED, which orders sets (sort what is read from one),", error
        )


def lets_out(error: BaseException | None) -> bool:
    """Whether an error is, contains, or was raised from a `SwitchedOff`."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(lets_out, error.exceptions))
    return error is not None and (isinstance(error, SwitchedOff) or lets_out(error.__cause__))


async def nothing_left(before: set[asyncio.Task[Any]], when: str) -> None:
    """Raise AssertionError if other tasks than those of `before` go on running."""
    for _ in range(ROUNDS):
        if asyncio.all_tasks() <= before:
            return
        await asyncio.sleep(0)
    left = [task.get_coro() for task in asyncio.all_tasks() - before]
    message = f"{len(left)} tasks are left running {when}: {getattr(left[0], '__qualname__', left[0])}"
    raise AssertionError(f"{message}. Start runs by `async with context.start(...)`")
