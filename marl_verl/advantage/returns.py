"""Returns: what the rewards from a turn on are worth to that turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_verl.advantage.columns import BoolArray, FloatArray, IntArray, combine
from marl_verl.advantage.part import Part
from marl_verl.advantage.rows import RowTable, check_shared
from marl_verl.advantage.tree import Tree, deepest_first
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

    def consumed(self) -> tuple[str, ...]:
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
class _SessionSum(Returns):
    """Base of returns that add up the agent's own turns in the session, later ones discounted by `gamma`."""

    gamma: float = 1.0
    sums_turns = True
    of = "sessions"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] each agent's last turn in the session."""
        return _latest(table.index, combine([table.uid.codes, table.session, table.agent.codes], len(table)))


@dataclass(frozen=True)
class Discounted(_SessionSum):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the agent's own turns in the session."""

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return _sum_own_turns(table, reward, self.gamma)


@dataclass(frozen=True)
class PathSum(_SessionSum):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the session's joint turns.

    The reward of a joint turn stands on the row of every agent that acts in it and counts once. Source: MAGRPO, arXiv
    2508.04652, without branching.
    """

    name: ClassVar[str] = "path_sum"

    def team_rows(self, table: RowTable) -> BoolArray:
        """[n] the rows of the session's last joint turn."""
        return _latest(table.turn, combine([table.uid.codes, table.session], len(table)))

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """MarlError if agents that act in one turn of a session have different rewards."""
        return sum_joint_turns(table, reward, self.gamma, "one joint turn")


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
        depth = np.zeros(len(table), dtype=np.int64)
        depth[tree.row] = tree.depth[tree.node]
        for rows in deepest_first(depth):
            ret[rows] += self.gamma * tree.sum_over_nodes(below, rows)
            rows = rows[tree.parent[rows] >= 0]
            np.add.at(below, tree.parent[rows], ret[rows] * share[rows])
        return ret


@dataclass(frozen=True)
class GAE(_SessionSum):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t over the agent's own turns.

    Generalised advantage estimation: a critic's values in place of the others of a group. V after the agent's last turn
    is 0; the critic is trained towards the target A_t + V_t.

    Schulman et al. 2016 (arXiv 1506.02438, equations 11 to 16), with a turn as the action and t counting the agent's
    own turns in the session, by index. V(o), column `value` of the rows, is a critic's (marl.critic), one number a
    turn, of the observation before the action. With lam = 1, A_t is the discounted return minus V(o_t); with lam = 0 it
    is the TD error delta_t. An agent without values, whose policy is frozen, has A = 0: nobody learns from its rows.

    The next value is that of the agent's own next turn, also where the critic sees what the whole team has seen (MAPPO,
    arXiv 2103.01955): rewards are on the rows of the agent that earned them, so what follows a turn is what the same
    agent earns from its next turn on. Turns of an agent that acts in several lanes at once follow each other by index,
    as in `Discounted`: the team reward counts on the last of all its turns.

    Attributes:
        gamma: discount of a turn.
        lam: how far rewards are believed over the critic: 1 sums them all up, 0 looks one turn ahead.
        critic: "policy": a critic for each policy, on what the agent sees; "team": one on what the team has seen.
    """

    name: ClassVar[str] = "gae"
    lam: float = 0.95
    critic: Scope = "policy"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.lam <= 1:
            raise MarlError(f"'lam' must be between 0 and 1, got {self.lam}")

    def wants_critic(self) -> Scope:
        return self.critic

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """A of every row, [n]. MarlError if no row has a value, or an agent has them on some rows only."""
        return self.stages(table, reward)[-1][1]

    def stages(self, table: RowTable, reward: FloatArray) -> list[tuple[str, FloatArray]]:
        """V, the TD error delta, the target and A, each [n]. MarlError as `compute`."""
        there = _valued(table)
        value, reward = np.where(there, table.values, 0.0), np.where(there, reward, 0.0)
        order, turns = _own_turns(table)
        v = value[order]
        goes_on = np.append(turns[1:] == turns[:-1], False)
        delta = np.empty(len(table))
        delta[order] = reward[order] + self.gamma * np.where(goes_on, np.append(v[1:], 0.0), 0.0) - v
        back = _sum_own_turns(table, delta, self.gamma * self.lam)
        return [("value", value), ("TD error", delta), ("value target", back + value), (f"returns: {self.name}", back)]

    def target(self, table: RowTable, ret: FloatArray) -> FloatArray:
        """[n] A + V; 0 where there is no value."""
        return ret + np.where(_valued(table), table.values, 0.0)


def check_gamma(gamma: float) -> None:
    """MarlError unless 0 <= gamma <= 1."""
    if not 0 <= gamma <= 1:
        raise MarlError(f"'gamma' must be between 0 and 1, got {gamma}")


def _latest(time: IntArray, group: IntArray) -> BoolArray:
    """[n] which rows have the largest `time` of their group."""
    last = np.zeros(int(group.max()) + 1, dtype=np.int64)
    np.maximum.at(last, group, time)
    return np.asarray(time == last[group])


def _sum_to_go(reward: FloatArray, session: IntArray, gamma: float, step: IntArray | None = None) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k, for rows sorted by session and in it by t: `step` [n], or 1, 2, ..."""
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


def sum_joint_turns(table: RowTable, reward: FloatArray, gamma: float, what: str) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k over the session's turns; `what` agents share in a turn counts once."""
    turns = combine([table.uid.codes, table.session, table.turn], len(table))
    check_shared(table, reward, turns, what)
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


def _valued(table: RowTable) -> BoolArray:
    """[n] which rows have a value. MarlError if none has, or an agent has them on some of its rows only."""
    there: BoolArray = ~np.isnan(table.values)
    if not there.any():
        raise MarlError("no row has a 'value': returns 'gae' need those of a critic (marl.critic)")
    if (row := table.lacking(there)) is not None:
        others = f"which other rows of agent '{table.agent.value(row)}' have"
        need = "returns 'gae' need a critic's (marl.critic) for all of them"
        raise MarlError(f"row '{table.key(row)}' lacks 'value', {others}: {need}")
    return there


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
