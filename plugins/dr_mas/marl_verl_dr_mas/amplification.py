"""Metric `amplification`: the effect of one mean and std for all agents on each agent's gradient.

    amplification_k = mean over tasks of (std_k^2 + (mean_k - mean)^2) / std^2 = E_k[(r - mean)^2] / std^2
                    = spread_k + shift_k

mean and std (population) are over all rows of a task, mean_k and std_k over those of agent k. It is the factor by
which a mean and std for all agents scale the second moment of agent k's gradient; its mean over the agents of a task,
weighted by their rows, is 1, so no agent has more than n / n_k. Tasks with equal rewards only are skipped. Source: Dr.
MAS, arXiv 2602.08847.

Both terms are reported too, because a factor of 1 can hide that an agent gets no learning signal: `spread`, std_k^2 /
std^2, distinguishes the agent's good actions from its bad ones; `shift`, (mean_k - mean)^2 / std^2, is the same for
all its rows: noise, which reinforces or suppresses all sampled actions alike.

Metric `second-moment` is the second moment of the actual advantages:

    second_moment_k = mean over these tasks of E_k[A^2]

With `grpo` on n rows of one task it is the amplification times (n - 1) / n, since A has the unbiased std. With `dr-mas`
it is (n_k - 1) / n_k, and 0 in tasks where all of the agent's rewards are equal: always below 1.
"""

from dataclasses import dataclass

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, FloatArray, IntArray, RowTable, combine, group_mean
from marl_verl.algo.algorithms import Metric


@dataclass(frozen=True)
class Amplification(Metric):
    """`agent/NAME/amplification` and its terms `.../spread` and `.../shift`, of the mixed rewards, independent
    of how the advantage is normalised. At 1 with shift 0, one mean and std for all agents has no effect."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]:
        """Agents whose tasks all have equal rewards only are missing."""
        rows = np.flatnonzero((result.group >= 0) & ~table.untrained)
        values: dict[str, float] = {}
        terms = amplification(result.reward[rows], table.uid.codes[rows], table.role.codes[rows])
        for code, (spread, shift) in terms.items():
            name = f"agent/{table.role.names[code]}/amplification"
            values |= {name: spread + shift, f"{name}/spread": spread, f"{name}/shift": shift}
        return values


@dataclass(frozen=True)
class SecondMoment(Metric):
    """`agent/NAME/second_moment`, of the actual advantages."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]:
        """Agents whose tasks all have equal rewards only are missing."""
        rows = np.flatnonzero((result.group >= 0) & ~table.untrained)
        pairs = _Pairs.of(result.reward[rows], table.uid.codes[rows], table.role.codes[rows])
        values = pairs.by_agent(pairs.mean(result.advantage[rows] ** 2))
        return {f"agent/{table.role.names[code]}/second_moment": value for code, value in values.items()}


def amplification(reward: FloatArray, task: IntArray, agent: IntArray) -> dict[int, tuple[float, float]]:
    """Agent -> the terms (spread, shift) of its factor; agents whose tasks all have equal rewards only are missing.

    Args:
        reward: [n] rewards.
        task, agent: [n] ids.
    """
    pairs = _Pairs.of(reward, task, agent)
    mean = pairs.mean(reward)
    spread = pairs.by_agent(pairs.mean((reward - mean[pairs.pair]) ** 2) / pairs.variance)
    shift = pairs.by_agent((mean - pairs.task_mean) ** 2 / pairs.variance)
    return {code: (spread[code], shift[code]) for code in spread}


@dataclass(frozen=True)
class _Pairs:
    """The (agent, task) pairs that occur, P of them.

    Attributes:
        pair: [n] ids 0..P-1 of rows.
        agent: [P] agent of each pair.
        task_mean, variance: [P] mean and variance of all rewards of the pair's task; a variance of 0 is NaN.
    """

    pair: IntArray
    agent: IntArray
    task_mean: FloatArray
    variance: FloatArray

    @classmethod
    def of(cls, reward: FloatArray, task: IntArray, agent: IntArray) -> "_Pairs":
        task = combine([task], len(reward))
        mean = group_mean(reward, task)
        variance = np.bincount(task, weights=(reward - mean[task]) ** 2) / np.bincount(task)
        pair = combine([agent, task], len(reward))
        first = np.unique(pair, return_index=True)[1]
        spread = np.where(variance > 0, variance, np.nan)
        return cls(pair, agent[first], mean[task[first]], spread[task[first]])

    def mean(self, values: FloatArray) -> FloatArray:
        """[P] means of [n] values."""
        return np.bincount(self.pair, weights=values) / np.bincount(self.pair)

    def by_agent(self, values: FloatArray) -> dict[int, float]:
        """Agent -> mean of [P] values over its tasks with a variance above 0."""
        kept = np.isfinite(self.variance)
        agents = np.unique(self.agent[kept])
        return {int(code): float(values[kept & (self.agent == code)].mean()) for code in agents}
