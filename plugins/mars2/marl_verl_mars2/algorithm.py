"""MARS2 and MARS2+: one search tree per task, rewards shaped by parent and siblings, the whole tree as one group."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from marl_verl.algo.advantage import TASK, Advantage, FloatArray, LeaveOneOut, Overlong, Returns, RowTable
from marl_verl.algo.algorithms import Algorithm, PlainRows, in_groups
from marl_verl.algo.rewards import Mix
from marl_verl_mars2.diversity import Diversity, Refinement


@dataclass(frozen=True)
class Shaped(Returns):
    """R(v) = r(v) + gamma * (r(v) - b(v)), b(v) = (1 - lam) * r(parent) + lam * mean of r over v's siblings without v.

    Children of the root have b = mean of the siblings; an only child below another node has b = r(parent); an only
    child of the root keeps r. All r are raw rewards. Source: MARS2, arXiv 2604.14564.
    """

    one_side: ClassVar[str | None] = "it compares a turn with its parent's, which may be another agent's"
    gamma: float = 0.5  # strength of the shaping
    lam: float = 0.5  # weight of the siblings in b
    shaping_from: Literal["raw"] = "raw"  # the rewards that b is computed from

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        tree = table.tree
        at_root = tree.parent < 0
        parent = np.where(at_root, tree.count + table.uid.codes, tree.parent)  # nodes are numbered over tasks
        siblings = np.unique(parent, return_inverse=True)[1]
        count = np.bincount(siblings)[siblings]
        others = LeaveOneOut().compute(reward, siblings)
        parent = tree.node_mean(reward)[tree.parent]
        mixed = (1 - self.lam) * parent + self.lam * others
        base: FloatArray = np.where(at_root, others, np.where(count > 1, mixed, parent))
        base = np.where(at_root & (count == 1), reward, base)
        return reward + self.gamma * (reward - base)


MARS2 = Algorithm(
    sampler="tree-search",
    rewards=Mix(),
    advantage=Advantage(returns=Shaped(), group=TASK, eps=1e-9, singleton="zero"),
    loss="ppo-clip",
    metrics=(Diversity(), Refinement()),
)
"""A = (R - mean_tree R) / (std_tree R + 1e-9), R shaped by parent and siblings.

Compared: all nodes of a task's tree, of every agent and depth. Each policy is trained on its own nodes only. Sources:
MARTI-MARS2, arXiv 2602.07848, and for shaping and tree group MARS2, arXiv 2604.14564 (read in summaries only).
"""

LONG = Advantage(returns=Shaped(), overlong=Overlong(L=32768, C=2048), group=TASK, eps=1e-9, singleton="zero")
MARS2_PLUS = replace(MARS2, advantage=LONG, loss="gspo-tis")
"""MARS2 with three changes: the overlong penalty after shaping, GSPO's sequence-level ratio, and token-level truncated
importance sampling min(pi_old / pi_rollout, 2), applied once. Source: MARS2+, arXiv 2602.07848.
"""


def shaped(rows: PlainRows, gamma: float = 0.5, lam: float = 0.5) -> list[float]:
    """r' = r + gamma (r - b), b = (1 - lam) r_parent + lam * mean of the siblings' r, see `Shaped`."""
    reward = {(row["uid"], row["node"]): row["rewards"]["team"] for row in rows}
    returns = []
    for row in rows:
        r, parent = row["rewards"]["team"], reward.get((row["uid"], row["parent"]))
        beside = [o for o in rows if (o["uid"], o["parent"]) == (row["uid"], row["parent"]) and o is not row]
        base = float(np.mean([o["rewards"]["team"] for o in beside])) if beside else None
        if parent is not None:
            base = parent if base is None else (1 - lam) * parent + lam * base
        returns.append(r + gamma * (r - (r if base is None else base)))
    return returns


def mars2(rows: PlainRows) -> list[float]:
    return in_groups(shaped(rows), rows, ["uid"], eps=1e-9)


def mars2_plus(rows: PlainRows) -> list[float]:
    over = [min(max(row["length"] - (32768 - 2048), 0), 2048) / 2048 for row in rows]
    return in_groups([r - o for r, o in zip(shaped(rows), over, strict=True)], rows, ["uid"], eps=1e-9)


REFERENCES = {"mars2": mars2, "mars2-plus": mars2_plus}
