"""Credits that are computed from the rows of a batch: C3 compares subtrees, GiGPO's step groups steps, efficiency turns
of episodes."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, combine, deepest_first
from marl_verl.algo.advantage.compare import LeaveOneOut, Mean, Scale, Unbiased, compare
from marl_verl.algo.advantage.rows import SIBLINGS, TASK, Group, RowTable, group_ids
from marl_verl.algo.credit import TableCredit
from marl_verl.options import Share, Small
from marl_verl_baselines.returns import sum_joint_turns

Mode = Literal["mean_norm", "mean_std_norm"]


@dataclass(frozen=True)
class C3(TableCredit):
    """credit(v) = Q(v) - mean of Q over v's siblings without v; Q(v) = mean team reward of the leaves below v.

    Siblings are the same agent's turns from the same parent: their history is identical, so that a difference in Q is
    due to their actions. An only child gets 0. `credit` replaces component `of`, whose values at leaves Q averages, in
    the sum of components; to use it as the advantage, set baseline "none".
    """

    one_side: ClassVar[str | None] = "it gives a turn the team rewards of the turns after it, of all agents"
    needs_tree: ClassVar[str | None] = "it compares siblings in a tree, and these turns have no siblings"
    of: str = "team"

    def consumed(self) -> tuple[str, ...]:
        return (self.of,)

    def compute(self, table: RowTable) -> FloatArray:
        reward, tree = table.component(self.of), table.tree
        inner = np.isin(np.arange(tree.count), tree.parent)
        total, leaves = np.where(inner, 0.0, tree.node_mean(reward)), np.where(inner, 0.0, 1.0)
        _, one = np.unique(tree.node, return_index=True)  # one row of each node, for its parent
        above = tree.parent[tree.row[one]]
        for nodes in deepest_first(tree.depth):
            nodes = nodes[above[nodes] >= 0]
            np.add.at(total, above[nodes], total[nodes])
            np.add.at(leaves, above[nodes], leaves[nodes])
        mean = total / leaves
        quality = tree.sum_over_nodes(mean, np.arange(len(table))) / np.bincount(tree.row, minlength=len(table))
        return quality - LeaveOneOut().compute(quality, group_ids(table, SIBLINGS))


@dataclass(frozen=True)
class StepGroups(TableCredit):
    """credit = S - mean of S over rows with the same observation (or that over std + eps).

    S_t = sum_{k >= t} gamma^(k - t) step_k over the session's turns; a turn of several agents counts once. Source:
    GiGPO, arXiv 2505.10978, equations 6 to 8.
    """

    one_side: ClassVar[str | None] = "it sums the steps of all agents"
    no_tree: ClassVar[str | None] = "it sums the turns of a session, and turns of a tree have siblings"
    step: str = "step"  # component with the reward of the environment's step
    gamma: Share = 0.95
    group: Group = TASK  # within which rows with the same `obs` are compared
    mode: Mode = "mean_norm"  # "mean_std_norm" also divides by std + eps
    std: Scale = Unbiased()
    eps: Small = 1e-6
    singleton: Literal["zero", "raw"] = "zero"  # credit for an observation that occurs once

    def consumed(self) -> tuple[str, ...]:
        return (self.step,)

    def compute(self, table: RowTable) -> FloatArray:
        value, baseline, scale = self.compared(table)
        return (value - baseline) / scale

    def compared(self, table: RowTable) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S, its baseline and its scale, each [n]. MarlError if a row has no observation."""
        value = sum_joint_turns(table, table.component(self.step), self.gamma, "one turn of the environment")
        table.check(table.obs.codes >= 0, "has no 'obs', the id of its observation, which step groups need")
        std = self.std if self.mode == "mean_std_norm" else None
        return value, *compare(value, group_ids(table, (*self.group, "obs")), Mean(), std, self.eps, self.singleton)


@dataclass(frozen=True)
class Efficiency(TableCredit):
    """efficiency_i = mean of T over the task's other episodes - T_i, in turns; T counts the turns of all agents.

    0 for an episode without others. Episodes that give up early save turns too: let an answer be worth more.
    """

    component: ClassVar[str] = "efficiency"
    repeated: ClassVar[bool] = True
    no_tree: ClassVar[str | None] = "it compares whole episodes, and turns of a tree are of several"

    def compute(self, table: RowTable) -> FloatArray:
        episode = combine([table.uid.codes, table.session], len(table))
        _, first, turns = np.unique(episode, return_index=True, return_counts=True)
        others = LeaveOneOut().compute(turns.astype(np.float64), combine([table.uid.codes[first]], len(first)))
        return (others - turns)[episode]
