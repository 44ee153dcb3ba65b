"""Returns: the (discounted) sum of rewards from a turn on."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_verl.algo.advantage.columns import (
    BoolArray,
    FloatArray,
    IntArray,
    combine,
    deepest_first,
    extremes,
    numbers_of,
)
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.options import Part, Share

Scope = Literal["policy", "team"]
"""Input of a critic: the agent's observation, one critic per policy; or the joint observation, one critic per team."""


class Returns(Part):
    """The return R of each row, computed from the rewards of the batch."""

    kind: ClassVar[str] = "returns"
    sums_turns: ClassVar[bool] = False  # R sums rewards of several turns: one repeated on each would count repeatedly
    of: ClassVar[Literal["both", "sessions", "trees"]] = "both"  # what R is defined for

    def wants_critic(self) -> Scope | None:
        """The critic whose values the returns take from the table, or None."""
        return None

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] bool, the rows that get the team reward of their episode: all, unless R sums the turns of a session."""
        return np.ones(len(table), dtype=np.bool_)

    @abstractmethod
    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """Compute the return of each row, [n]. `table` is sorted by key; `reward` [n] is finite."""

    def stages(self, table: RowTable, reward: FloatArray) -> list[tuple[str, FloatArray]]:
        """Intermediate values for `explain`: (name of the step, [n] values after it); the last one is the return."""
        return [(f"returns: {self.name}", numbers_of(self.compute(table, reward), len(table), self.described))]

    def target(self, table: RowTable, ret: FloatArray) -> FloatArray | None:
        """[n] the value targets of the critic, given the return; None without a critic."""
        return None


@dataclass(frozen=True)
class Immediate(Returns):
    """R_t = r_t: the turn's own reward, including the team reward of its episode."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return reward


@dataclass(frozen=True)
class Discounted(Returns):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the agent's own turns in the session."""

    gamma: Share = 1.0
    sums_turns = True
    of = "sessions"

    def team_rows(self, table: RowTable) -> BoolArray:
        return latest(table.index, combine([table.uid.codes, table.session, table.agent.codes], len(table)))

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        order, turns = own_turns(table)
        ret = np.empty(len(table))
        ret[order] = sum_to_go(reward[order], turns, self.gamma)
        return ret


def own_turns(table: RowTable) -> tuple[IntArray, IntArray]:
    """The rows [n] in the order of each agent's turns in its session, and in this order the number [n] of those."""
    turns = combine([table.uid.codes, table.session, table.agent.codes], len(table))
    order = np.lexsort((table.index, turns))
    return order, turns[order]


def latest(time: IntArray, group: IntArray) -> BoolArray:
    """[n] which rows have the largest `time` of their group."""
    return time == extremes(time, group)[1][group]


def sum_to_go(reward: FloatArray, session: IntArray, gamma: float, step: IntArray | None = None) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k, for rows sorted by session and in it by t: `step` [n], or 1, 2, ..."""
    ret, place = reward.copy(), np.arange(len(reward))
    last = np.flatnonzero(np.append(session[1:] != session[:-1], True))
    left = last[np.searchsorted(last, place)] - place  # rows after this one in its session
    for rows in deepest_first(-left)[1:]:  # backwards from each session's last row, vectorised over sessions
        power = 1 if step is None else step[rows + 1] - step[rows]
        ret[rows] += gamma**power * ret[rows + 1]
    return ret
