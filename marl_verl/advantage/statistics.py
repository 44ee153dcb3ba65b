"""What a batch says about each agent, under any sharing of policies: pure functions of a table and its advantages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marl_verl.advantage.groups import combine
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.rows import IntArray, RowTable

CREDITS = ("credit", "mc")
"""Signed credit components, whose share above, at and below zero is counted."""


@dataclass(frozen=True)
class AgentStatistics:
    """One agent's part in a batch. Sessions that failed have no rows and are not counted anywhere here.

    Attributes:
        rows: turns of this agent.
        groups: groups that hold at least one of them.
        zero_variance: share of these groups with two or more samples, all of the same return: they teach nothing.
        singles: share of these groups with one sample only: what it gets is the singleton policy's.
        reward: mean reward.
        components: reward component -> mean over the rows that have it.
        advantage_mean, advantage_std: mean and population std of the advantages.
        response_length: mean tokens of a response.
        invalid: share of actions that the workflow could not use.
        useful, idle, harmful: share of rows whose credit is above, at and below zero; None without such a component.
    """

    rows: int
    groups: int
    zero_variance: float
    singles: float
    reward: float
    components: dict[str, float]
    advantage_mean: float
    advantage_std: float
    response_length: float
    invalid: float
    useful: float | None
    idle: float | None
    harmful: float | None

    def metrics(self) -> dict[str, float]:
        """Every number by its metric's name; what is None is left out."""
        shares = {"credit/useful": self.useful, "credit/idle": self.idle, "credit/harmful": self.harmful}
        values: dict[str, float | None] = {
            "rows": self.rows,
            "groups": self.groups,
            "zero_variance": self.zero_variance,
            "singles": self.singles,
            "reward": self.reward,
            **{f"reward/{name}": value for name, value in self.components.items()},
            "advantage_mean": self.advantage_mean,
            "advantage_std": self.advantage_std,
            "response_length": self.response_length,
            "invalid": self.invalid,
            **shares,
        }
        return {name: float(value) for name, value in values.items() if value is not None}


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
        useful, idle, harmful = _signs(table, mine)
        statistics[table.agent.names[code]] = AgentStatistics(
            rows=len(mine),
            groups=len(groups),
            zero_variance=float(flat[groups].mean()),
            singles=float(single[groups].mean()),
            reward=float(result.reward[mine].mean()),
            components=_components(table, mine),
            advantage_mean=float(result.advantage[mine].mean()),
            advantage_std=float(result.advantage[mine].std()),
            response_length=float(table.length[mine].mean()),
            invalid=float(table.invalid[mine].mean()),
            useful=useful,
            idle=idle,
            harmful=harmful,
        )
    return statistics


def _components(table: RowTable, rows: IntArray) -> dict[str, float]:
    """Component -> mean over those of `rows` that have it."""
    found = {}
    for name, values in table.rewards.items():
        having = rows[table.present[name][rows]]
        if len(having):
            found[name] = float(values[having].mean())
    return found


def _signs(table: RowTable, rows: IntArray) -> tuple[float | None, float | None, float | None]:
    """Shares of `rows` whose credit is above, at and below zero."""
    for name in CREDITS:
        if name in table.present and len(having := rows[table.present[name][rows]]):
            credit = table.rewards[name][having]
            return float((credit > 0).mean()), float((credit == 0).mean()), float((credit < 0).mean())
    return None, None, None
