"""Independent sampling: n sessions a task, none knowing of the others.

    episode_g ~ pi(. | task),  g = 0 .. sessions - 1

All sessions go at once, and each act is sampled as soon as its run reaches it: no episode waits for another, and no
agent for one that acts beside it. The time for a task is that of its slowest episode's critical path.
"""

from __future__ import annotations

from marl_verl.episode import Episode
from marl_verl.sampling.attempt import ask, attempt, scored, together
from marl_verl.sampling.base import Failure, Rollouts, Sample, Sampler, drive


class Independent(Sampler):
    """Every session by itself: `sessions` episodes a task."""

    async def sample(self, rollouts: Rollouts) -> Sample:
        """All sessions of one task, concurrently."""
        work = (attempt(rollouts, g, _episode(rollouts, g)) for g in range(rollouts.sessions))
        done = await together(work)
        return Sample(
            episodes=[each for each in done if isinstance(each, Episode)],
            failures=[each for each in done if isinstance(each, Failure)],
        )


async def _episode(rollouts: Rollouts, session: int) -> Episode:
    """Drive one run to its end and score it."""
    async with rollouts.start(session) as run:
        await drive(run, lambda act: ask(rollouts, act, session))
        return await scored(rollouts, rollouts.finish(run, session))
