"""Slots of parallel sub-agents, which make requests by one client.

Tasks that one task creates without waiting in between (`asyncio.gather`, a `TaskGroup`, the fan-out of a framework) are
parallel. Their requests have the slots "parallel-1", "parallel-2", ...; inside the first one, "parallel-1.1" and so on.
A task that is created alone goes on in the slot of its creator, or in that of a parallel task that it has waited for
and whose conversation it continues. So the names follow from the structure of the workflow,
and not from the order in which actions arrive.
"""

from __future__ import annotations

import asyncio
import contextvars
import re
from typing import Any


class _Burst:
    """The tasks that one task creates before it waits."""

    def __init__(self, path: tuple[int, ...]) -> None:
        self.path, self.size, self.ended = path, 0, False

    def end(self) -> None:
        self.ended = True


class _Place:
    """A task's number in the burst in which it was created, and the last burst that it has created itself."""

    def __init__(self, burst: _Burst | None = None, number: int = 0) -> None:
        self.burst, self.number = burst, number
        self.last: _Burst | None = None

    @property
    def path(self) -> tuple[int, ...]:
        if self.burst is None:
            return ()
        return (*self.burst.path, self.number) if self.burst.size > 1 else self.burst.path


_place: contextvars.ContextVar[_Place | None] = contextvars.ContextVar("marl_verl_place", default=None)


def begin() -> None:
    """Begin with the current context: tasks that are created in it are at the top."""
    _place.set(_Place())


def placed(loop: asyncio.AbstractEventLoop, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a task that is created now, with a context that has its place."""
    creator = _place.get()
    if creator is None:
        return options
    if creator.last is None or creator.last.ended:
        creator.last = _Burst(creator.path)
        loop.call_soon(creator.last.end)  # called before the creator goes on, if it waits now
    creator.last.size += 1
    context = options.get("context") or contextvars.copy_context()
    context.run(_place.set, _Place(creator.last, creator.last.size))
    return {**options, "context": context}


def parallel_slot() -> str | None:
    """The slot of the current task, or of the one that began this thread; None if it is not parallel to others."""
    place = _place.get()
    path = () if place is None else place.path
    return f"parallel-{'.'.join(map(str, path))}" if path else None


def within(slot: str | None, outer: str | None) -> bool:
    """Whether a slot is `outer`, or that of a choice or a parallel task in it; no task beside `outer` uses it."""
    if slot is None or slot == outer:
        return slot == outer
    return slot.startswith(("parallel-", "choice") if outer is None else f"{outer}.")


def path_of(slot: str | None) -> list[int]:
    """The numbers in the name of a slot, in which slots are ordered as their tasks were created."""
    return [int(number) for number in re.findall(r"\d+", slot or "")]
