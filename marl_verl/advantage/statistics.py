"""How much there was to learn from, per agent: pure functions of a table and its advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_verl.advantage.groups import combine
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.rows import RowTable


@dataclass(frozen=True)
class AgentStatistics:
    """One agent's part in a batch. Sessions that failed have no rows and are not counted anywhere here.

    Attributes:
        rows: turns of this agent.
        groups: groups that hold at least one of them.
        zero_variance: share of these groups with two or more samples, all of the same return: they teach nothing.
        singles: share of these groups with one sample only: what it gets is the singleton policy's.
        reward: mean reward.
        advantage_mean, advantage_std: mean and population std of the advantages.
    """

    rows: int
    groups: int
    zero_variance: float
    singles: float
    reward: float
    advantage_mean: float
    advantage_std: float


def agent_statistics(table: RowTable, result: Advantages) -> dict[str, AgentStatistics]:
    """Agent -> its statistics; padding rows enter none.

    Whether a group has zero variance is decided over all its rows, also those of other agents in it.
    """
    rows = np.flatnonzero(result.group >= 0)
    group, ret, agent = result.group[rows], result.ret[rows], table.agent.codes[rows]
    low, high = np.full(int(group.max()) + 1, np.inf), np.full(int(group.max()) + 1, -np.inf)
    np.minimum.at(low, group, ret)
    np.maximum.at(high, group, ret)
    first_of_sample = np.unique(result.sample[rows], return_index=True)[1]
    samples = np.bincount(group[first_of_sample], minlength=len(low))
    single, flat = samples == 1, (samples > 1) & (low == high)

    # One entry per (agent, group) that occurs.
    first_of_pair = np.unique(combine([agent, group], len(rows)), return_index=True)[1]
    pair_agent, pair_group = agent[first_of_pair], group[first_of_pair]
    statistics = {}
    for code in np.unique(agent):
        mine, groups = rows[agent == code], pair_group[pair_agent == code]
        statistics[table.agent.names[code]] = AgentStatistics(
            rows=len(mine),
            groups=len(groups),
            zero_variance=float(flat[groups].mean()),
            singles=float(single[groups].mean()),
            reward=float(result.reward[mine].mean()),
            advantage_mean=float(result.advantage[mine].mean()),
            advantage_std=float(result.advantage[mine].std()),
        )
    return statistics
