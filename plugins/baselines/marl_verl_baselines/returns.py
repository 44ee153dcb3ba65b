"""Returns: sums over joint turns, means over a tree, and generalised advantage estimation."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import BoolArray, FloatArray, combine, deepest_first
from marl_verl.algo.advantage.returns import Discounted, Returns, Scope, latest, own_turns, sum_to_go
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.errors import MarlError
from marl_verl.options import Share


@dataclass(frozen=True)
class PathSum(Discounted):
    """R_t = sum_{k >= t} gamma^(k - t) r_k over the session's joint turns.

    The reward of a joint turn is on the row of every agent that acts in it and counts once. Source: MAGRPO, arXiv
    2508.04652, without branching.
    """

    name: ClassVar[str] = "path_sum"
    one_side: ClassVar[str | None] = "it sums the turns of all agents"

    def team_rows(self, table: RowTable) -> BoolArray:
        return latest(table.turn, combine([table.uid.codes, table.session], len(table)))

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


@dataclass(frozen=True)
class GAE(Discounted):
    """A_t = sum_l (gamma lam)^l delta_{t+l}, delta_t = r_t + gamma V_{t+1} - V_t over the agent's own turns.

    Generalised advantage estimation (docs/algorithms.md, Critics): V(o), column `value` of a row, is a critic's value
    of the observation before the action, and 0 after the agent's last turn; t counts its turns in the session by index,
    also in concurrent lanes. The critic's target is A_t + V_t. An agent with a frozen policy has A = 0.
    Source: Schulman et al. 2016 (arXiv 1506.02438, equations 11 to 16); joint observation: MAPPO, arXiv 2103.01955.
    """

    lam: Share = 0.95
    critic: Scope = "policy"  # a critic per policy, of the agent's observation; "team": one of the joint observation

    def wants_critic(self) -> Scope:
        return self.critic

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        return self.stages(table, reward)[-1][1]

    def stages(self, table: RowTable, reward: FloatArray) -> list[tuple[str, FloatArray]]:
        """V, the TD error delta, the target and A, each [n]."""
        there = ~np.isnan(table.values)
        if not there.any():
            raise MarlError("no row has a 'value', which returns 'gae' needs. Configure a critic (marl.critic).")
        table.check_roles(there, "'value'")
        value, reward = np.where(there, table.values, 0.0), np.where(there, reward, 0.0)
        order, turns = own_turns(table)
        v = value[order]
        goes_on = np.append(turns[1:] == turns[:-1], False)
        delta = np.empty(len(table))
        delta[order] = reward[order] + self.gamma * np.where(goes_on, np.append(v[1:], 0.0), 0.0) - v
        back = Discounted(self.gamma * self.lam).compute(table, delta)
        return [("value", value), ("TD error", delta), ("value target", back + value), (f"returns: {self.name}", back)]

    def target(self, table: RowTable, ret: FloatArray) -> FloatArray:
        """[n] A + V; 0 where there is no value."""
        return ret + np.nan_to_num(table.values)


def sum_joint_turns(table: RowTable, reward: FloatArray, gamma: float, what: str) -> FloatArray:
    """[n] R_t = sum_{k >= t} gamma^(k - t) r_k over the session's turns; the shared reward of a turn counts once.
    MarlError, with the name `what` of a turn, if its rows have different rewards."""
    turns = combine([table.uid.codes, table.session, table.turn], len(table))
    table.check_shared(reward, turns, what)
    _, first = np.unique(turns, return_index=True)
    sessions = combine([table.uid.codes[first], table.session[first]], len(first))
    return sum_to_go(reward[first], sessions, gamma, step=table.turn[first])[turns]


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
