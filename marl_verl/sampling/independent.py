"""Independent sampling: n sessions a task, none knowing of the others; and the best of them.

    episode_g ~ pi(. | task),  g = 0 .. sessions - 1

All sessions go at once, and each act is sampled as soon as its run reaches it: no episode waits for another, and no
agent for one that acts beside it. The time for a task is that of its slowest episode's critical path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from marl_verl.episode import Episode
from marl_verl.sampling.attempt import ask, attempt, scored, together
from marl_verl.sampling.base import Failure, Rollouts, Sample, Sampler, drive

T = TypeVar("T")


class Independent(Sampler):
    """Every session by itself, all concurrently: `sessions` episodes a task."""

    async def sample(self, rollouts: Rollouts) -> Sample:
        return Sample(*await _sessions(rollouts, _episode))


class BestOf(Sampler):
    """Best of n: n independent sessions, of which the team hands in the one that looks best without the solution.

        g* = argmax over g of public(answer_g),   the lowest g of equals

    `public` is `TaskSet.public_score`: public tests, a check of the form. `score` then says what the episode is worth,
    as at inference with n times the samples (Chen et al., arXiv 2107.03374, filter by public tests in this way). The
    chosen episode is the sample's only one; the turns of the others are its `others`, and rows as well.
    """

    @property
    def public(self) -> bool:
        return True

    async def sample(self, rollouts: Rollouts) -> Sample:
        judged, failures = await _sessions(rollouts, _judged)
        if not judged:
            return Sample(failures=failures)
        best, _ = max(judged, key=lambda pair: pair[1])  # the first of equals
        best.others = [turn for episode, _ in judged if episode is not best for turn in episode.turns]
        return Sample([best], failures)


async def _sessions(rollouts: Rollouts, work: Callable[[Rollouts, int], Awaitable[T]]) -> tuple[list[T], list[Failure]]:
    """What `work` makes of every session, all at once, and the sessions that failed."""
    done = await together(attempt(rollouts, g, work(rollouts, g)) for g in range(rollouts.sessions))
    return [each for each in done if not isinstance(each, Failure)], [
        each for each in done if isinstance(each, Failure)
    ]


async def _episode(rollouts: Rollouts, session: int) -> Episode:
    """Drive one run to its end and score it."""
    async with rollouts.start(session) as run:
        await drive(run, lambda act: ask(rollouts, act, session))
        return await scored(rollouts, rollouts.finish(run, session))


async def _judged(rollouts: Rollouts, session: int) -> tuple[Episode, float]:
    episode = await _episode(rollouts, session)
    return episode, await scored(rollouts, rollouts.public_score(episode.answer))
