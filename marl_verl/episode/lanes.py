"""Slots of parallel sub-agents, which make requests by one client.

Tasks that one task creates without waiting in between (`asyncio.gather`, a `TaskGroup`, the fan-out of a framework) are
parallel. Their requests have the slots "parallel-1", "parallel-2", ...; inside the first one, "parallel-1.1" and so on.
A task that is created alone goes on in the slot of its creator, or in that of a parallel task that it has waited for
and whose conversation it continues. So the names follow from the structure of the workflow,
and not from the order in which actions arrive.
"""

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine
from typing import Any

from marl_verl import threads


class _Burst:
    """The tasks that one task creates before it waits."""

    def __init__(self, creator: "_Place") -> None:
        self.creator, self.size, self.ended = creator, 0, False


class _Place:
    """A task's number in the burst in which it was created, and the last burst that it has created itself."""

    def __init__(self, burst: _Burst | None = None, number: int = 0) -> None:
        self.burst, self.number = burst, number
        self.numbers: tuple[int, ...] = () if burst is None else (*burst.creator.numbers, number)
        self.last: _Burst | None = None

    @property
    def path(self) -> tuple[int, ...]:
        if self.burst is None:
            return ()
        path = self.burst.creator.path
        return (*path, self.number) if self.burst.size > 1 else path


_place: contextvars.ContextVar[_Place | None] = contextvars.ContextVar("marl_verl_place", default=None)


_prepared: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()


def start(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Create a task in the running loop; the tasks that it creates have places, and cannot end the loop."""
    loop = asyncio.get_running_loop()
    if loop not in _prepared:
        _prepared.add(loop)
        create: Any = loop.get_task_factory() or (lambda loop, work, **rest: asyncio.Task(work, loop=loop, **rest))

        def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
            if (creator := _place.get()) is None:
                return create(loop, work, **options)
            contained: Any = threads.contained(work)
            contained.__qualname__ = getattr(work, "__qualname__", "work")
            task = create(loop, contained, **placed(loop, creator, options))
            task.add_done_callback(lambda _: work.close())  # not awaited if the task is cancelled before it starts
            return task

        loop.set_task_factory(make)
    context = contextvars.copy_context()
    context.run(_place.set, _Place())
    return context.run(asyncio.create_task, work)


def placed(loop: asyncio.AbstractEventLoop, creator: _Place, options: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a task that `creator` creates now, with a context that has its place."""
    if creator.last is None or creator.last.ended:
        creator.last = _Burst(creator)
        loop.call_soon(setattr, creator.last, "ended", True)  # called before the creator goes on, if it waits now
    creator.last.size += 1
    context = options.get("context") or contextvars.copy_context()
    context.run(_place.set, _Place(creator.last, creator.last.size))
    return {**options, "context": context}


def parallel_slot() -> str | None:
    """The slot of the current task, or of the one that began this thread; None if it is not parallel to others."""
    place = _place.get()
    path = () if place is None else place.path
    return f"parallel-{'.'.join(map(str, path))}" if path else None


def numbers() -> tuple[int, ...]:
    """The number of the current task among those that were created with it, after the numbers of its creators; none
    for the task that runs the workflow. They do not depend on the order in which actions arrive."""
    place = _place.get()
    return () if place is None else place.numbers[1:]  # the first is that of the workflow's own task
