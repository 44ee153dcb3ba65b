"""HACPO (arXiv 2603.02604): policies of different models learn from each other's episodes of the same tasks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge

from marl_verl.algo.advantage import AdvantageResult, Estimator, FloatArray, Group, RowTable, group_ids, group_mean
from marl_verl.algo.algorithms import Algorithm, PlainRows, rewards_of
from marl_verl.options import Positive

LEAST = 1e-8  # a lower capability counts as this


@dataclass(frozen=True)
class CapabilityAware(Estimator):
    """A_i(k) = (r_i - mean_j w(k, j) r_j) / (std_j r_j + eps) over the rows j of all policies in the group of row i.

        w(k, j) = P_k / P_j,   P_k = the mean reward of policy k's rows in a step, averaged over the last `window` steps

    is A for policy k's own rows; it learns from a row of policy j with the advantage w(j, k) A_i(k). Equations 6 to 10
    and 50 of arXiv 2603.02604. A group of equal rewards has A = 0, and w is limited, as in the authors' code.
    """

    name: ClassVar[str] = "capability-aware"
    no_tree: ClassVar[str | None] = "it compares episodes of several policies, and a tree is one of all of them"
    group: Group = ("uid",)
    window: Positive = 5  # K
    most: Annotated[float, Ge(1)] = 10.0  # w is between 1 / most and most
    eps: Annotated[float, Ge(0)] = 1e-6

    @property
    def remembers(self) -> bool:
        return True

    def recall(
        self, table: RowTable, reward: FloatArray, memory: Mapping[str, float]
    ) -> tuple[Mapping[str, FloatArray], Mapping[str, float]]:
        """Column `capability`: P of a row's policy. The memory has the mean rewards of steps, "NAME/0" the newest."""
        capability, after = np.empty(len(table)), dict(memory)
        for policy, own in _policies(table).items():
            former = [memory[f"{policy}/{age}"] for age in range(self.window - 1) if f"{policy}/{age}" in memory]
            steps = [float(np.mean(reward[own])), *former]
            after |= {f"{policy}/{age}": mean for age, mean in enumerate(steps)}
            capability[own] = np.mean(steps)
        return {"capability": capability}, after

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        capability = table.numbers.get("capability")
        if capability is None:  # a first step
            capability = self.recall(table, reward, {})[0]["capability"]
        capability, group = np.maximum(capability, LEAST), group_ids(table, self.group)
        squares = np.bincount(group, weights=(reward - group_mean(reward, group)[group]) ** 2)
        std = np.sqrt(squares / np.maximum(np.bincount(group) - 1, 1))[group]
        baseline, shared = np.empty(len(table)), dict[str, FloatArray]()
        for policy, own in _policies(table).items():
            ratio = np.clip(capability[own][0] / capability, 1 / self.most, self.most)
            mean = np.where(std == 0, reward, group_mean(ratio * reward, group)[group])
            baseline[own], shared[policy] = mean[own], (reward - mean) / (std + self.eps) / ratio
        rows = np.arange(len(table))
        return AdvantageResult(reward, reward, baseline, std + self.eps, group, rows, self.group, shared=shared)


def _policies(table: RowTable) -> dict[str, FloatArray]:
    """Policy -> [n] bool, the rows that it sampled."""
    codes = table.policy.codes
    return {str(table.policy.value(int(np.argmax(codes == code)))): codes == code for code in np.unique(codes)}


HACPO = Algorithm(sampler="shared-rollouts", advantage=CapabilityAware(), loss="hacpo")
"""Compared: every row with every row of its task, of all policies. The loss corrects for who sampled it."""


def hacpo(rows: PlainRows, learner: str | None = None) -> list[float]:
    """The advantages with which policy `learner` learns from the rows of a first step; None: each row's own policy."""
    every = [(row["uid"], row.get("policy"), r) for row, r in zip(rows, rewards_of(rows), strict=True)]
    P = {k: max(float(np.mean([r for _, j, r in every if j == k])), LEAST) for _, k, _ in every}
    w = {(k, j): min(max(P[k] / P[j], 0.1), 10.0) for k in P for j in P}
    advantages = []
    for uid, j, r in every:
        k = j if learner is None else learner
        rewards = [other for task, _, other in every if task == uid]
        baseline = np.mean([w[k, i] * other for task, i, other in every if task == uid])
        std = np.std(rewards, ddof=1) if len(set(rewards)) > 1 else np.inf
        advantages.append(float(w[j, k] * (r - baseline) / (std + 1e-6)))
    return advantages


REFERENCES = {"hacpo": hacpo}
