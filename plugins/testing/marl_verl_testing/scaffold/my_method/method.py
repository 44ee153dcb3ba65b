"""The method: a sampler, a credit, a baseline, and the algorithm that combines them.

A = (R - median) / (std + eps)               over an agent's n-th acts in the episodes of one task
R = team + 0.5 * role + 0.5 * credit         team reward, and the turn's role reward and credit
"""

from dataclasses import dataclass

import numpy as np
from marl_verl import Episode
from marl_verl.algo.advantage import TURN, Advantage, Baseline, FloatArray, IntArray
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.rewards import Mix
from marl_verl.algo.sampling import Failure, Sample, Sampler, SamplingContext, ask, attempt, drive, scored
from marl_verl.options import Positive


class Saving(Sampler):
    """Sample episodes one after the other until one succeeds: a solved task costs less.

    Options:
        episodes: maximum number of episodes per task.
    """

    episodes: Positive = 8

    async def sample(self, context: SamplingContext) -> Sample:
        """The episodes of one task. One that raises becomes a failure and does not affect the others."""
        sample = Sample()
        for session in range(self.episodes):
            attempted = await attempt(context, session, episode(context, session))
            if isinstance(attempted, Failure):
                sample.failures.append(attempted)
                continue
            sample.episodes.append(attempted)
            if attempted.success:
                break
        return sample


async def episode(context: SamplingContext, session: int) -> Episode:
    """Run the workflow to its end: each act is sampled from its agent's policy, and the answer is scored."""
    async with context.start(session) as run:
        await drive(run, lambda act: ask(context, act, session))
        return await scored(context, context.finish(run, session))


@dataclass(frozen=True)
class StepForward(ReplayCredit):
    """credit_t = v_t - v_(t-1), where v_t is the score of turn t's text as the answer, and v_(-1) = 0.

    A writer that garbles a right call gets -1, one that copies it 0. The credits of an episode add up to its score.
    """

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Set the component on every turn. Returns the number of tokens sampled for it, 0."""
        before = 0.0
        for turn in episode.turns:
            value = await scored(context, context.score(turn.action.text))
            turn.rewards[self.component] = value - before
            before = value
        return 0


@dataclass(frozen=True)
class Median(Baseline):
    """b = median of the group's returns, which is robust to a single lucky episode."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """Return one baseline per value [n]; `group` [n] are ids without gaps."""
        return np.array([np.median(value[group == number]) for number in range(group.max() + 1)])[group]


ALGORITHM = Algorithm(
    sampler="my-method-saving",
    rewards=Mix(team=1.0, role=0.5, credit=0.5),
    credit=(StepForward(),),
    advantage=Advantage(group=TURN, baseline=Median(), singleton="zero"),
    loss="ppo-clip",
)
