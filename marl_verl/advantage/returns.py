"""Returns: what the rewards from a turn on are worth to that turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_verl.advantage.groups import combine
from marl_verl.advantage.part import Part
from marl_verl.advantage.rows import BoolArray, FloatArray, IntArray, RowTable, check_shared
from marl_verl.advantage.tree import Tree
from marl_verl.errors import MarlError

Scope = Literal["policy", "team"]
"""What a critic sees: what the agent saw, one critic for each policy; or what the whole team has seen, one for all."""


class Returns(Part):
    """R of a row, from the rewards of the batch.

    Attributes:
        sums_turns: whether R adds up rewards of several turns: what is repeated on each of them would count repeatedly.
        of: whether it looks along the turns of a session, of a tree, or at neither.
    """

    kind: ClassVar[str] = "returns"
    sums_turns: ClassVar[bool] = False
    of: ClassVar[Literal["both", "sessions", "trees"]] = "both"

    def reads(self) -> tuple[str, ...]:
        """Reward components that it reads by itself: the sum of all components leaves them out."""
        return ()

    def wants_critic(self) -> Scope | None:
        """The critic whose values it takes from the table; None for none."""
        return None

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] the rows on which the team reward of their episode counts: all, unless R adds up turns of a session."""
        return np.ones(len(table), dtype=np.bool_)

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """Return per row, [n]. `table` has no padding and is sorted by key; `reward` [n] is finite."""
        raise NotImplementedError

    def stages(self, table: RowTable, reward: FloatArray) -> list[tuple[str, FloatArray]]:
        """The return and what led to it, for `explain`: (what was done, [n] values after it), `compute`'s last."""
        return [(f"returns: {self.name}", self.compute(table, reward))]

    def target(self, table: RowTable, ret: FloatArray) -> FloatArray | None:
        """[n] what its critic learns from, given the return; None without a critic."""
        return None


@dataclass(frozen=True)
class Immediate(Returns):
    """R_t = r_t: a turn answers for its own reward, and for the team reward of its episode."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return reward


@dataclass(frozen=True)
class Discounted(Returns):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the agent's own turns in the session."""

    gamma: float = 1.0
    sums_turns = True
    of = "sessions"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] each agent's last turn in the session."""
        return last_turns(table)

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        trajectory = combine([table.uid.codes, table.session, table.agent.codes], len(table))
        order = np.lexsort((table.index, trajectory))
        back = np.empty(len(table))
        back[order] = sum_to_go(reward[order], trajectory[order], self.gamma)
        return back


@dataclass(frozen=True)
class PathSum(Returns):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the session's joint turns.

    The reward of a joint turn stands on the row of every agent that acts in it and counts once. Source: MAGRPO, arXiv
    2508.04652, without branching.
    """

    name: ClassVar[str] = "path_sum"
    gamma: float = 1.0
    sums_turns = True
    of = "sessions"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] the rows of the session's last joint turn."""
        return latest(table.turn, combine([table.uid.codes, table.session], len(table)))

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """MarlError if agents that act in one turn of a session have different rewards."""
        turns = combine([table.uid.codes, table.session, table.turn], len(table))
        _, first = np.unique(turns, return_index=True)
        joint = reward[first]
        check_shared(table, reward, turns, "one joint turn")
        sessions = combine([table.uid.codes[first], table.session[first]], len(first))
        return sum_to_go(joint, sessions, self.gamma, step=table.turn[first])[turns]


@dataclass(frozen=True)
class TreeMean(Returns):
    """R = r + gamma * mean over the children of their R; a leaf has R = r.

    The rows of all agents at one node share its reward, which counts once. A crossed row, which takes part in several
    joint nodes, has the sum of their rewards, and R = r + gamma * sum over its nodes of the children's mean. Source:
    MAGRPO, arXiv 2508.04652, as in the authors' code.
    """

    name: ClassVar[str] = "tree_mean"
    gamma: float = 1.0
    sums_turns = True
    of = "trees"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """MarlError as `Tree.of`, or if rows at one node, none of them crossed, have different rewards."""
        tree = table.tree
        share = _crossed_share(table, tree) if tree.crossed else _node_share(table, tree, reward)
        ret, below = reward.copy(), np.zeros(tree.count)  # below: mean over the children of their R
        for rows in tree.levels_upwards():
            ret[rows] += self.gamma * tree.sum_over_nodes(below, rows)
            rows = rows[tree.parent[rows] >= 0]
            np.add.at(below, tree.parent[rows], ret[rows] * share[rows])
        return ret


def check_gamma(gamma: float) -> None:
    """MarlError unless 0 <= gamma <= 1."""
    if not 0 <= gamma <= 1:
        raise MarlError(f"'gamma' must be between 0 and 1, got {gamma}")


def last_turns(table: RowTable) -> BoolArray:
    """[n] which rows are the last turn of their agent in the session."""
    return latest(table.index, combine([table.uid.codes, table.session, table.agent.codes], len(table)))


def latest(time: IntArray, group: IntArray) -> BoolArray:
    """[n] which rows have the largest `time` [n] >= 0 of their group, ids [n]."""
    last = np.zeros(int(group.max()) + 1, dtype=np.int64)
    np.maximum.at(last, group, time)
    return np.asarray(time == last[group])


def sum_to_go(reward: FloatArray, session: IntArray, gamma: float, step: IntArray | None = None) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k, for rows that stand in order within each session, sessions in order.

    Args:
        step: [n] t of each row, rising within a session; None counts the rows.
    """
    n = len(reward)
    start = np.flatnonzero(np.append(True, session[1:] != session[:-1]))
    length = np.diff(np.append(start, n))
    ret = reward.astype(np.float64).copy()
    left = np.repeat(start + length, length) - 1 - np.arange(n)  # rows after this one in its session
    # from each session's last row backwards, all sessions at once
    by_left = np.argsort(left, kind="stable")
    for rows in np.split(by_left, np.flatnonzero(np.diff(left[by_left])) + 1)[1:]:
        power = 1 if step is None else step[rows + 1] - step[rows]
        ret[rows] += gamma**power * ret[rows + 1]
    return ret


def _node_share(table: RowTable, tree: Tree, reward: FloatArray) -> FloatArray:
    """[n] each row's part in the mean over its parent's children: 1 / (rows at its node * nodes below the parent)."""
    check_shared(table, reward, tree.node, "one joint action")
    _, one = np.unique(tree.node, return_index=True)
    above = tree.parent[one]
    children = np.bincount(above[above >= 0], minlength=tree.count)
    return 1.0 / np.bincount(tree.node)[tree.node] / np.maximum(children[tree.parent], 1)


def _crossed_share(table: RowTable, tree: Tree) -> FloatArray:
    """[n] the same for crossed rows: an agent's completions together have each joint action below the parent once."""
    ours = combine([tree.parent, table.agent.codes], len(table))
    nodes = np.bincount(ours[tree.row], minlength=len(table))  # an agent with two lanes is at each twice
    _, one = np.unique(ours, return_index=True)
    inner = one[tree.parent[one] >= 0]
    agents = np.bincount(tree.parent[inner], minlength=tree.count)
    return 1.0 / nodes[ours] / np.maximum(agents[tree.parent], 1)
