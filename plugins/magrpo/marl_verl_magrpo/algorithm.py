"""MAGRPO (arXiv 2508.04652): agents that act simultaneously, one joint reward, returns over turns."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Gt
from marl_verl_baselines import PathSum, TreeMean

from marl_verl.algo.advantage import (
    SIBLINGS,
    TURN,
    AdvantageResult,
    Baseline,
    FloatArray,
    Group,
    GroupEstimator,
    LeaveOneOut,
    Max,
    Mean,
    NoBaseline,
    Population,
    Returns,
    Rows,
    RowTable,
    Scale,
    group_ids,
    group_mean,
)
from marl_verl.algo.algorithms import Algorithm, PlainRows
from marl_verl.errors import MarlError

BASELINES: dict[str, Baseline] = {"mean": Mean(), "raw": NoBaseline(), "max": Max(), "rloo": LeaveOneOut()}


@dataclass(frozen=True)
class JointAdvantage(GroupEstimator):
    """A = R - b over the siblings of one (node, agent); with `normalize`, A' = (A - mean A) / max(std A, min_std).

    Source: MAGRPO, arXiv 2508.04652, and the authors' code. The paper's form is mode "mean" without `normalize`. With
    `normalize` all four modes give the same advantages, because each b is constant or linear in R within the group.

    Attributes:
        joint_mode: the rows of a tree: "aligned", one per agent and joint action; or "cross", one per completion, with
            the sum of its joint actions' rewards and their nodes joined by "+".
    """

    name: ClassVar[str] = "joint"
    returns: Returns = PathSum()  # without branching; `TreeMean` of a joint tree
    joint_mode: Literal["aligned", "cross"] = "aligned"
    group: Group = TURN  # `SIBLINGS` of a joint tree
    mode: Literal["mean", "raw", "max", "rloo"] = "mean"  # b: "raw" is 0, "rloo" the mean of the others' R
    normalize: bool = False  # whiten the group's advantages
    std: Scale = Population()
    min_std: Annotated[float, Gt(0)] = 1e-6  # lower bound of the divisor

    def incompatibility(self, rows: Rows) -> str | None:
        if rows.crossed and self.joint_mode != "cross":
            return "a row belongs to several nodes: set joint_mode to 'cross'"
        return super().incompatibility(replace(rows, crossed=False))

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        if self.joint_mode == "aligned" and table.tree.crossed:
            raise MarlError("a row belongs to several nodes: set joint_mode to 'cross'")
        ret = self.returns.compute(table, reward)
        group = group_ids(table, self.group)
        baseline = BASELINES[self.mode].compute(ret, group)
        scale = np.ones(len(table))
        if self.normalize:
            centred = ret - baseline
            baseline = baseline + group_mean(centred, group)[group]
            scale = np.maximum(self.std.compute(centred, group), self.min_std)[group]
        rows, stages = np.arange(len(table)), [(f"returns: {self.returns.name}", ret)]
        return AdvantageResult(ret, reward, baseline, scale, group, rows, self.group, stages)


MAGRPO = Algorithm(sampler="joint-tree", advantage=JointAdvantage(returns=TreeMean(), group=SIBLINGS), loss="reinforce")
"""A = R - mean_g R, R_j = r_j + gamma * mean over the children's R, g = siblings: rows of one parent and agent.

Compared: the same agent's actions in the sibling joint actions of one state, by the team's return from there on. No
std, no clip: the loss is REINFORCE, summed over a row's tokens, averaged over rows. Source: MAGRPO, arXiv 2508.04652.
"""

MAGRPO_SESSIONS = replace(MAGRPO, sampler="independent", advantage=JointAdvantage())
"""A = R - mean_g R, R_t = sum of the joint rewards from turn t on, g = rows of the same task, turn and agent.

Compared: the same agent's actions at the same turn of the other episodes, by the team's return from there on. MAGRPO
without branching, the form of the paper's equations. Source: MAGRPO, arXiv 2508.04652.
"""


def magrpo(rows: PlainRows, gamma: float = 1.0) -> list[float]:
    """R(node) = r + gamma * mean R(children), minus the mean over the nodes of the agent below the same parent."""

    def ret(uid: str, node: str) -> float:
        reward = next(row["rewards"]["team"] for row in rows if (row["uid"], row["node"]) == (uid, node))
        children = {row["node"] for row in rows if (row["uid"], row["parent"]) == (uid, node)}
        return float(reward + (gamma * np.mean([ret(uid, child) for child in children]) if children else 0.0))

    returns = [ret(row["uid"], row["node"]) for row in rows]
    return _centred(returns, rows, ("uid", "parent", "agent"))


def magrpo_sessions(rows: PlainRows, gamma: float = 1.0) -> list[float]:
    returns = []
    for row in rows:
        session = [o for o in rows if (o["uid"], o["session"]) == (row["uid"], row["session"])]
        later = {o["turn"]: sum(o["rewards"].values()) for o in session if o["turn"] >= row["turn"]}
        returns.append(sum(gamma ** (turn - row["turn"]) * reward for turn, reward in later.items()))
    return _centred(returns, rows, ("uid", "turn", "agent"))


def _centred(returns: Sequence[float], rows: PlainRows, columns: Sequence[str]) -> list[float]:
    keys = [tuple(row[column] for column in columns) for row in rows]
    means = {key: np.mean([r for r, other in zip(returns, keys, strict=True) if other == key]) for key in keys}
    return [float(r - means[key]) for r, key in zip(returns, keys, strict=True)]


REFERENCES = {"magrpo": magrpo, "magrpo-sessions": magrpo_sessions}
