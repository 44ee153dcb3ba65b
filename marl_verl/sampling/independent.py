"""Independent sampling: n sessions a task, none knowing of the others; and the best of them.

    episode_g ~ pi(. | task),  g = 0 .. sessions - 1

All sessions go at once, and each act is sampled as soon as its run reaches it: no episode waits for another, and no
agent for one that acts beside it. The time for a task is that of its slowest episode's critical path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from marl_verl.episode import Episode
from marl_verl.sampling.attempt import ask, attempt, gather_all, scored
from marl_verl.sampling.base import Failure, Sample, Sampler, SamplingContext, drive

T = TypeVar("T")


class Independent(Sampler):
    """Every session by itself, all concurrently: `sessions` episodes a task."""

    async def sample(self, context: SamplingContext) -> Sample:
        return Sample(*await _sessions(context, _episode))


class BestOf(Sampler):
    """Best of n: n independent sessions, of which the team hands in the one that looks best without the solution.

        g* = argmax over g of public(answer_g),   the lowest g of equals

    `public` is `TaskSet.public_score`: public tests, a check of the form. `score` then says what the episode is worth,
    as at inference with n times the samples (Chen et al., arXiv 2107.03374, filter by public tests in this way). The
    chosen episode is the sample's only one; the turns of the others are its `off_path_turns`, and rows as well.
    """

    @property
    def public(self) -> bool:
        return True

    async def sample(self, context: SamplingContext) -> Sample:
        judged, failures = await _sessions(context, _judged)
        if not judged:
            return Sample(failures=failures)
        best, _ = max(judged, key=lambda pair: pair[1])  # the first of equals
        best.off_path_turns = [turn for episode, _ in judged if episode is not best for turn in episode.turns]
        return Sample([best], failures)


async def _sessions(
    context: SamplingContext, work: Callable[[SamplingContext, int], Awaitable[T]]
) -> tuple[list[T], list[Failure]]:
    """What `work` makes of every session, all at once, and the sessions that failed."""
    done = await gather_all(attempt(context, g, work(context, g)) for g in range(context.sessions))
    return [each for each in done if not isinstance(each, Failure)], [
        each for each in done if isinstance(each, Failure)
    ]


async def _episode(context: SamplingContext, session: int) -> Episode:
    """Drive one run to its end and score it."""
    async with context.start(session) as run:
        await drive(run, lambda act: ask(context, act, session))
        return await scored(context, context.finish(run, session))


async def _judged(context: SamplingContext, session: int) -> tuple[Episode, float]:
    episode = await _episode(context, session)
    return episode, await scored(context, context.public_score(episode.answer))
