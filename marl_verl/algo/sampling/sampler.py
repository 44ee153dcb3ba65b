"""The sampler interface: a sampler turns one task into episodes by starting, driving and restarting runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from marl_verl.algo.sampling.base import Sample
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.episode import Act, Action, Run
from marl_verl.options import Options
from marl_verl.tasks.base import TaskSet


class Sampler(Options):
    """Base of samplers, which work with any workflow. Annotated attributes are its options in config; one of them
    is the number of attempts at a task, named for what an attempt is (episodes, nodes).

    Attributes:
        branches: whether turns have siblings. Returns, groups and credits on a tree need such a sampler.
        incremental: in a tree, whether component `team` is what a turn adds to its path, so that returns must sum it;
            otherwise it is the score of the state that the turn leads to.
        one_side: why all agents must be of one side, because it compares or adds up rewards of different agents; None
            if sides may compete.
        greedy: whether rows have the column `GREEDY`.
    """

    greedy: ClassVar[bool] = False
    branches: ClassVar[bool] = False
    incremental: ClassVar[bool] = False
    one_side: ClassVar[str | None] = None

    async def sample(self, context: SamplingContext) -> Sample:
        """Sample the episodes of one task. A failed attempt becomes a `Failure`; cancellation propagates."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def sample(self, context)`")

    def check(self, agents: Sequence[str]) -> None:
        """Raise MarlError if an option does not fit the team."""

    def warning(self, tasks: TaskSet, turns: int) -> str | None:
        """Why an option is doubtful for these tasks in a workflow with so many turns of trained agents; else None."""
        return None

    @property
    def crossed(self) -> bool:
        """Whether a row can be at several nodes."""
        return False

    @property
    def public(self) -> bool:
        """Whether the sampler needs the task set's `public_score`."""
        return False


async def drive(run: Run, sample: Callable[[Act], Awaitable[Action]]) -> None:
    """Drive a run to its end, sampling every act as soon as it is reached; concurrent acts are sampled concurrently.

    Raises:
        WorkflowError: raised by the run.
        Exception: the first exception raised by `sample`; other requests are then cancelled, and the run stays blocked.
    """

    async def answer(act: Act) -> None:
        run.resolve(act, await sample(act))

    try:
        async with asyncio.TaskGroup() as group:
            asked: list[asyncio.Task[None]] = []
            while (acts := await run.next()) is not None:
                asked += [group.create_task(answer(act)) for act in acts]
            for task in asked:  # acts that the finished workflow did not wait for
                task.cancel()
    except ExceptionGroup as errors:
        error: Exception = errors
        while isinstance(error, ExceptionGroup):  # the other exceptions are from concurrent acts
            error = error.exceptions[0]
        raise error  # noqa: B904  (`from` would replace its cause)
