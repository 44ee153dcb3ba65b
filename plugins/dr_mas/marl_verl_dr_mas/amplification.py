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

from marl_verl.algo.advantage import AdvantageResult, FloatArray, IntArray, RowTable
from marl_verl.algo.algorithms import Metric


class Amplification(Metric):
    """`agent/NAME/amplification` and its terms `.../spread` and `.../shift`, of the mixed rewards, independent of how
    the advantage is normalised; and `agent/NAME/second_moment`, of the actual advantages.

    At amplification 1 with shift 0, one mean and std for all agents has no effect."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]:
        rows = np.flatnonzero((result.group >= 0) & ~table.untrained)
        task, agent = table.uid.codes[rows], table.role.codes[rows]
        values: dict[str, float] = {}
        terms = amplification(result.reward[rows], result.advantage[rows], task, agent)
        for code, (spread, shift, moment) in terms.items():
            name = f"agent/{table.role.names[code]}"
            values |= {f"{name}/amplification": spread + shift, f"{name}/second_moment": moment}
            values |= {f"{name}/amplification/spread": spread, f"{name}/amplification/shift": shift}
        return values


def amplification(reward: FloatArray, advantage: FloatArray, task: IntArray, agent: IntArray) -> dict[int, list[float]]:
    """Agent -> the terms (spread, shift) of its factor, and its second moment, from [n] rewards, advantages and ids;
    agents whose tasks all have equal rewards only are missing."""
    terms: dict[int, list[tuple[float, float, float]]] = {}
    for rows in (np.flatnonzero(task == code) for code in np.unique(task)):
        mean, variance = reward[rows].mean(), reward[rows].var()
        for code in np.unique(agent[rows]) if np.ptp(reward[rows]) else ():
            own = rows[agent[rows] == code]
            spread, shift = reward[own].var() / variance, (reward[own].mean() - mean) ** 2 / variance
            terms.setdefault(int(code), []).append((spread, shift, (advantage[own] ** 2).mean()))
    return {code: np.mean(values, axis=0).tolist() for code, values in terms.items()}
