"""Metric `amplification`: the effect of one mean and std for all agents on each agent's gradient.

    amplification_k = mean over tasks of (std_k^2 + (mean_k - mean)^2) / std^2 = E_k[(r - mean)^2] / std^2
                    = spread_k + shift_k

mean and std (population) are over all rows of a task, mean_k and std_k over those of agent k. It is the factor by
which a mean and std for all agents scale the second moment of agent k's gradient; its mean over the agents of a task,
weighted by their rows, is 1, so no agent has more than n / n_k. Tasks with equal rewards only are skipped. Source: Dr.
MAS, arXiv 2602.08847. README.md says what the terms mean. The second moment of the actual advantages is beside it:

    second_moment_k = mean over these tasks of E_k[A^2]
"""

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, FloatArray, IntArray, RowTable, combine, group_mean
from marl_verl.algo.algorithms import Metric


class Amplification(Metric):
    """`agent/NAME/amplification` and its terms `.../spread` and `.../shift`, of the mixed rewards, independent of how
    the advantage is normalised; and `agent/NAME/second_moment`, of the actual advantages.

    At amplification 1 with shift 0, one mean and std for all agents has no effect."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]:
        rows = np.flatnonzero((result.group >= 0) & ~table.untrained)
        reward, task, agent = result.reward[rows], table.uid.codes[rows], table.role.codes[rows]
        moments = _by_agent(result.advantage[rows] ** 2, reward, task, agent)
        values: dict[str, float] = {}
        for code, (spread, shift) in amplification(reward, task, agent).items():
            name = f"agent/{table.role.names[code]}"
            values |= {f"{name}/amplification": spread + shift, f"{name}/second_moment": moments[code]}
            values |= {f"{name}/amplification/spread": spread, f"{name}/amplification/shift": shift}
        return values


def amplification(reward: FloatArray, task: IntArray, agent: IntArray) -> dict[int, tuple[float, float]]:
    """Agent -> the terms (spread, shift) of its factor, from [n] rewards and ids; agents whose tasks all have equal
    rewards only are missing."""
    mean, own = _mean(reward, task), _mean(reward, agent, task)
    variance = np.maximum(_mean((reward - mean) ** 2, task), np.finfo(float).tiny)  # 0 counts nowhere
    spread = _by_agent((reward - own) ** 2 / variance, reward, task, agent)
    shift = _by_agent((own - mean) ** 2 / variance, reward, task, agent)
    return {code: (spread[code], shift[code]) for code in spread}


def _mean(values: FloatArray, *ids: IntArray) -> FloatArray:
    """[n] the mean of the rows with the same ids."""
    group = combine(ids, len(values))
    return group_mean(values, group)[group]


def _by_agent(values: FloatArray, reward: FloatArray, task: IntArray, agent: IntArray) -> dict[int, float]:
    """Agent -> mean over its tasks with different rewards of the mean of [n] values in the task."""
    means, kept = _mean(values, agent, task), _mean((reward - _mean(reward, task)) ** 2, task) > 0
    first = np.unique(combine([agent, task], len(reward)), return_index=True)[1]  # a row of each agent in each task
    first = first[kept[first]]
    return {int(code): float(means[first[agent[first] == code]].mean()) for code in np.unique(agent[first])}
