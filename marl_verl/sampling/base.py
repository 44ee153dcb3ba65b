"""What a sampler is: it turns one task into episodes, through runs that it starts, drives and may restart anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from marl_verl.episode import Act, Action, Episode, Journal, Run
from marl_verl.options import Options

Reason = Literal["workflow-error", "policy-error", "score-error", "timeout"]
"""Which part of a session failed: the workflow, the policy asked for an action, the scoring of the answer, or time."""


class Rollouts(Protocol):
    """What the rollout worker hands a sampler for one task: how many sessions are wanted, and the means to get them."""

    @property
    def sessions(self) -> int:
        """How many episodes the task should get."""

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """A new run of the workflow on the task, from the start or a journal. The sampler closes what it starts."""

    async def act(self, act: Act, session: int, candidate: int = 0) -> Action:
        """Ask the agent's policy. The same (act, session, candidate) has the same request seed; candidates differ."""

    async def finish(self, run: Run, session: int) -> Episode:
        """Score a finished run and make it an episode."""


@dataclass(frozen=True)
class Failure:
    """A session without an episode.

    Attributes:
        reason: its class, for counting.
        detail: what happened, in a sentence.
        trace: the traceback, for the log.
    """

    session: int
    reason: Reason
    detail: str
    trace: str = ""


@dataclass
class Sample:
    """What sampling one task gave: every session is in one of the two, in session order."""

    episodes: list[Episode] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class Sampler(Options):
    """A way to sample a team on any workflow. Annotated attributes are its options in config."""

    async def sample(self, rollouts: Rollouts) -> Sample:
        """The episodes of one task. One failing session becomes a `Failure`; cancellation propagates."""
        raise NotImplementedError(f"{type(self).__name__} has no `async def sample(self, rollouts)`")


async def drive(run: Run, sample: Callable[[Act], Awaitable[Action]]) -> None:
    """Take a run to its end, sampling every act as soon as it is reached, concurrent ones concurrently.

    Raises:
        WorkflowError: of the run.
        Exception: the first that `sample` raised; the other acts are then cancelled, and the run stays where it stands.
    """

    async def answer(act: Act) -> None:
        run.supply(act, await sample(act))

    try:
        async with asyncio.TaskGroup() as group:
            asked: list[asyncio.Task[None]] = []
            while (acts := await run.next()) is not None:
                asked += [group.create_task(answer(act)) for act in acts]
            for task in asked:  # acts that the workflow ended without waiting for
                task.cancel()
    except ExceptionGroup as errors:
        raise _first(errors)  # noqa: B904  (`from` would replace the cause that it has)


def _first(errors: ExceptionGroup) -> Exception:
    """The first of several errors: the others came of acts sampled at the same time."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, ExceptionGroup) else error
