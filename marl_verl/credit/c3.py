"""C3: a turn's subtree against the subtrees of the turns that could have stood in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.advantage.baselines import LeaveOneOut
from marl_verl.advantage.groups import SIBLINGS, group_ids
from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.credit.table import TableCredit


@dataclass(frozen=True)
class C3(TableCredit):
    """credit(v) = Q(v) - mean of Q over v's siblings without v; Q(v) = mean team reward of the leaves below v.

    Siblings are the same agent's turns from the same parent: what came before them is identical, so the difference is
    theirs. An only child gets 0. `credit` takes the place of `of` in the sum of components; an algorithm that
    uses it as advantage has baseline "none".

    Attributes:
        of: the component that Q averages; what it is at inner nodes does not matter.
    """

    name: ClassVar[str] = "c3"
    of: str = "team"

    def misfit(self, branches: bool) -> str | None:
        return None if branches else "it compares siblings in a tree, and turns have none here"

    def reads(self) -> tuple[str, ...]:
        return (self.of,)

    def compute(self, table: RowTable) -> FloatArray:
        """MarlError for a row without the component, or as `Tree.of`."""
        reward, tree = table.component(self.of), table.tree
        total, leaves = np.zeros(tree.count), np.zeros(tree.count)
        inner = np.zeros(tree.count, dtype=np.bool_)
        inner[tree.parent[tree.parent >= 0]] = True
        value = tree.node_mean(reward)
        total[~inner], leaves[~inner] = value[~inner], 1.0
        _, one = np.unique(tree.node, return_index=True)  # one row of each node leads up
        above = tree.parent[tree.row[one]]
        for nodes in tree.nodes_upwards():
            nodes = nodes[above[nodes] >= 0]
            np.add.at(total, above[nodes], total[nodes])
            np.add.at(leaves, above[nodes], leaves[nodes])
        mean = total / leaves
        quality = tree.sum_over_nodes(mean, np.arange(len(table))) / np.bincount(tree.row, minlength=len(table))
        siblings = group_ids(table, SIBLINGS)
        return quality - LeaveOneOut().compute(quality, siblings)
