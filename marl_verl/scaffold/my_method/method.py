"""The method: which episodes are sampled, what a turn is credited with, and what is compared with what.

A = (R - median) / (std + eps)               over an agent's n-th acts in the sessions of one task
R = team + 0.5 * role + 0.5 * credit         what the team earned, and what the turn did for it
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from marl_verl import Episode
from marl_verl.advantage import Advantage, Baseline, FloatArray, IntArray
from marl_verl.algorithms import Algorithm
from marl_verl.credit import ReplayCredit
from marl_verl.rewards import Mix
from marl_verl.sampling import Failure, Sample, Sampler, SamplingContext, ask, attempt, drive, gather_all, scored


class Saving(Sampler):
    """`first` sessions at once, and the others only if one of these did not succeed: a solved task costs less.

    Options:
        first: sessions that every task gets.
    """

    first: int = 4

    async def sample(self, context: SamplingContext) -> Sample:
        """The episodes of one task."""
        first = min(self.first, context.sessions)
        done = await play(context, range(first))
        if not all(isinstance(each, Episode) and each.success for each in done):
            done += await play(context, range(first, context.sessions))
        return Sample(
            episodes=[each for each in done if isinstance(each, Episode)],
            failures=[each for each in done if isinstance(each, Failure)],
        )


async def play(context: SamplingContext, sessions: range) -> list[Episode | Failure]:
    """Some sessions, all at once. A session that raises becomes a failure and does not affect the others."""
    return await gather_all(attempt(context, session, episode(context, session)) for session in sessions)


async def episode(context: SamplingContext, session: int) -> Episode:
    """One run of the workflow to its end: every act is sampled from its agent's policy, the answer is scored."""
    async with context.start(session) as run:
        await drive(run, lambda act: ask(context, act, session))
        return await scored(context, context.finish(run, session))


@dataclass(frozen=True)
class StepForward(ReplayCredit):
    """credit_t = v_t - v_(t-1), where v_t is the score of turn t's words as the answer, and v_(-1) = 0.

    A writer that garbles a right call has -1, one that copies it 0. The credits of an episode add up to its score.
    """

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Fill in the component on every turn; 0 tokens were sampled for it."""
        before = 0.0
        for turn in episode.turns:
            value = await scored(context, context.score(turn.action.text))
            turn.rewards[self.component] = value - before
            before = value
        return 0


@dataclass(frozen=True)
class Median(Baseline):
    """b = median of the group's returns: one lucky session does not move it."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One baseline per value [S]; `group` [S] are ids without gaps."""
        ordered = value[np.lexsort((value, group))]
        count = np.bincount(group)
        first = np.cumsum(count) - count
        return ((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)[group]


# every part is an object, or a name that is registered
ALGORITHM = Algorithm(
    sampler="my-method-saving",
    rewards=Mix(team=1.0, role=0.5, credit=0.5),
    credit=StepForward(),
    advantage=Advantage(returns="immediate", group="turn", baseline=Median(), singleton="zero"),
    loss="ppo-clip",
)
