"""A sampler: which episodes of a task there are."""

from __future__ import annotations

from marl_verl import Episode
from marl_verl.sampling import Failure, Rollouts, Sample, Sampler, ask, attempt, drive, scored, together


class Saving(Sampler):
    """`first` sessions at once, and the others only if one of these did not succeed: a solved task costs less.

    Options:
        first: sessions that every task gets.
    """

    first: int = 4

    async def sample(self, rollouts: Rollouts) -> Sample:
        """The episodes of one task."""
        first = min(self.first, rollouts.sessions)
        done = await play(rollouts, range(first))
        if not all(isinstance(each, Episode) and each.success for each in done):
            done += await play(rollouts, range(first, rollouts.sessions))
        return Sample(
            episodes=[each for each in done if isinstance(each, Episode)],
            failures=[each for each in done if isinstance(each, Failure)],
        )


async def play(rollouts: Rollouts, sessions: range) -> list[Episode | Failure]:
    """Some sessions, all at once. What goes wrong in one becomes a failure, and the others do not notice."""
    return await together(attempt(rollouts, session, episode(rollouts, session)) for session in sessions)


async def episode(rollouts: Rollouts, session: int) -> Episode:
    """One run of the workflow to its end: every act is asked of its agent's policy, the answer is scored."""
    async with rollouts.start(session) as run:
        await drive(run, lambda act: ask(rollouts, act, session))
        return await scored(rollouts, rollouts.finish(run, session))
