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
class _SessionSum(Returns):
    """Base of returns that sum the agent's own turns in the session, later ones discounted by `gamma`."""

    gamma: Share = 1.0
    sums_turns = True
    of = "sessions"

    def team_rows(self, table: RowTable) -> BoolArray:
        return _latest(table.index, combine([table.uid.codes, table.session, table.agent.codes], len(table)))


@dataclass(frozen=True)
class Discounted(_SessionSum):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the agent's own turns in the session."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return _sum_own_turns(table, reward, self.gamma)


@dataclass(frozen=True)
class PathSum(_SessionSum):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the session's joint turns.

    The reward of a joint turn is on the row of every agent that acts in it and counts once. Source: MAGRPO, arXiv
    2508.04652, without branching.
    """

    name: ClassVar[str] = "path_sum"
    one_side: ClassVar[str | None] = "it sums the turns of all agents"

    def team_rows(self, table: RowTable) -> BoolArray:
        return _latest(table.turn, combine([table.uid.codes, table.session], len(table)))

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return sum_joint_turns(table, reward, self.gamma, "one joint turn")


@dataclass(frozen=True)
class TreeMean(Returns):
    """R = r + gamma * mean over the children of their R; a leaf has R = r.

    The rows of all agents at one node share its reward, which counts once. A crossed row, which is at several joint
    nodes, has the sum of their rewards, and R = r + gamma * sum over its nodes of the children's mean. Source: MAGRPO,
    arXiv 2508.04652, as in the authors' code.
    """

    name: ClassVar[str] = "tree_mean"
    one_side: ClassVar[str | None] = "it sums the turns of all agents on a path"
    gamma: Share = 1.0
    sums_turns = True
    of = "trees"

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        tree = table.tree
        share = _crossed_share(table) if tree.crossed else _node_share(table, reward)
        ret, below = reward.copy(), np.zeros(tree.count)  # below: mean over the children of their R
        depth = np.zeros(len(table), dtype=np.int64)
        depth[tree.row] = tree.depth[tree.node]
        for rows in deepest_first(depth):
            ret[rows] += self.gamma * tree.sum_over_nodes(below, rows)
            rows = rows[tree.parent[rows] >= 0]
            np.add.at(below, tree.parent[rows], ret[rows] * share[rows])
        return ret


def _latest(time: IntArray, group: IntArray) -> BoolArray:
    """[n] which rows have the largest `time` of their group."""
    return time == extremes(time, group)[1][group]


def _sum_to_go(reward: FloatArray, session: IntArray, gamma: float, step: IntArray | None = None) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k, for rows sorted by session and in it by t: `step` [n], or 1, 2, ..."""
    ret, place = reward.copy(), np.arange(len(reward))
    last = np.flatnonzero(np.append(session[1:] != session[:-1], True))
    left = last[np.searchsorted(last, place)] - place  # rows after this one in its session
    for rows in deepest_first(-left)[1:]:  # backwards from each session's last row, vectorised over sessions
        power = 1 if step is None else step[rows + 1] - step[rows]
        ret[rows] += gamma**power * ret[rows + 1]
    return ret


def sum_joint_turns(table: RowTable, reward: FloatArray, gamma: float, what: str) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k over the session's turns; the shared reward of a turn counts once.
    MarlError, with the name `what` of a turn, if its rows have different rewards."""
    turns = combine([table.uid.codes, table.session, table.turn], len(table))
    table.check_shared(reward, turns, what)
    _, first = np.unique(turns, return_index=True)
    sessions = combine([table.uid.codes[first], table.session[first]], len(first))
    return _sum_to_go(reward[first], sessions, gamma, step=table.turn[first])[turns]


def _own_turns(table: RowTable) -> tuple[IntArray, IntArray]:
    """[n] rows sorted by agent and session, then index; and ids of (agent, session), in that order."""
    ids = combine([table.uid.codes, table.session, table.agent.codes], len(table))
    order = np.lexsort((table.index, ids))
    return order, ids[order]


def _sum_own_turns(table: RowTable, reward: FloatArray, gamma: float) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k over the agent's own turns in the session."""
    order, turns = _own_turns(table)
    back = np.empty(len(table))
    back[order] = _sum_to_go(reward[order], turns, gamma)
    return back


def _node_share(table: RowTable, reward: FloatArray) -> FloatArray:
    """[n] each row's weight in the mean over its parent's children: 1 / (rows at its node * children of the parent)."""
    tree = table.tree
    table.check_shared(reward, tree.node, "one joint action")
    _, one = np.unique(tree.node, return_index=True)
    above = tree.parent[one]
    children = np.bincount(above[above >= 0], minlength=tree.count)
    return 1.0 / np.bincount(tree.node)[tree.node] / np.maximum(children[tree.parent], 1)


def _crossed_share(table: RowTable) -> FloatArray:
    """[n] as `_node_share`, for crossed rows: an agent's rows together cover each joint action of the parent once."""
    tree, ours = table.tree, combine([table.tree.parent, table.agent.codes], len(table))
    nodes = np.bincount(ours[tree.row], minlength=len(table))  # an agent with two lanes is at each node twice
    _, one = np.unique(ours, return_index=True)
    inner = one[tree.parent[one] >= 0]
    agents = np.bincount(tree.parent[inner], minlength=tree.count)
    return 1.0 / nodes[ours] / np.maximum(agents[tree.parent], 1)
