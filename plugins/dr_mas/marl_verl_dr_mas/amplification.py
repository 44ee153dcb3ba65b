"""Metric `amplification`: what one mean and std for all agents would do to each agent's gradient.

    amplification_k = mean over tasks of (std_k^2 + (mean_k - mean)^2) / std^2 = E_k[(r - mean)^2] / std^2

mean and std (population) are those of all rows of a task, mean_k and std_k those of agent k's. It is the factor by
which a mean and std for all agents scale the second moment of agent k's gradient; the agents of a task have 1 on
average, weighted by their rows. Tasks without spread are left out. Source: Dr. MAS, arXiv 2602.08847.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_verl.advantage import Advantages, FloatArray, IntArray, Metric, RowTable, combine, group_mean


@dataclass(frozen=True)
class Amplification(Metric):
    """`agent/NAME/amplification`, of the mixed rewards, whichever way the advantage is normalised: 1 means that a mean
    and std for all would do no harm."""

    def of_rows(self, table: RowTable, result: Advantages) -> dict[str, float]:
        """An agent whose tasks all lack spread has none."""
        rows = np.flatnonzero(result.group >= 0)
        factors = amplification(result.reward[rows], table.uid.codes[rows], table.agent.codes[rows])
        return {f"agent/{table.agent.names[code]}/amplification": factor for code, factor in factors.items()}


def amplification(reward: FloatArray, task: IntArray, agent: IntArray) -> dict[int, float]:
    """Agent -> its factor.

    Args:
        reward: [n] rewards.
        task, agent: [n] ids.
    """
    task = combine([task], len(reward))
    squared = (reward - group_mean(reward, task)[task]) ** 2
    variance = np.bincount(task, weights=squared) / np.bincount(task)
    pairs = combine([agent, task], len(reward))
    _, first = np.unique(pairs, return_index=True)
    of_pair = np.bincount(pairs, weights=squared) / np.bincount(pairs)
    spread = variance[task[first]]
    kept = spread > 0
    ratio, owner = of_pair[kept] / spread[kept], agent[first][kept]
    return {int(code): float(ratio[owner == code].mean()) for code in np.unique(owner)}
