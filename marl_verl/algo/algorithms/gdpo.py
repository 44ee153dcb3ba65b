"""GDPO: normalises each reward component by itself, then their sum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, combine
from marl_verl.algo.advantage.compare import Mean, Unbiased, compare
from marl_verl.algo.advantage.estimator import Estimator, Rows
from marl_verl.algo.advantage.groups import TASK, Group, group_ids
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.reference import PlainRows, in_groups
from marl_verl.algo.credit.base import TAKEN
from marl_verl.errors import MarlError
from marl_verl.options import Small


@dataclass(frozen=True)
class Decoupled(Estimator):
    """A = whiten(sum_k w_k (r_k - mean r_k) / (std r_k + eps)), mean and std of component k over the group.

    `whiten` subtracts the mean and divides by sqrt(variance + 1e-8), both over the response tokens of all rows of the
    policy, so that a long response weighs more. Source: GDPO, arXiv 2601.05242, verl's
    `compute_gdpo_outcome_advantage`.

    Attributes:
        keys: reward components; those other than `team`, `role` and those of `Mix` are parts of the task's score.
        key_weights: w, one per key; None: all are 1.
    """

    name: ClassVar[str] = "decoupled"
    keys: tuple[str, ...] = ("team",)
    key_weights: tuple[float, ...] | None = None
    group: Group = TASK
    norm_by_std: bool = True
    eps: Small = 1e-6

    def __post_init__(self) -> None:
        if not self.keys or (self.key_weights is not None and len(self.key_weights) != len(self.keys)):
            raise MarlError(f"'keys' {self.keys} need a number each in 'key_weights', got {self.key_weights}")

    def score_parts(self) -> tuple[str, ...]:
        return tuple(key for key in self.keys if key not in TAKEN)

    def consumed(self) -> tuple[str, ...]:
        return self.score_parts()

    def incompatibility(self, rows: Rows) -> str | None:
        return "its components are those of whole episodes, and a tree is a single session" if rows.tree else None

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        group, total, stages = group_ids(table, self.group), np.zeros(len(table)), []
        std = Unbiased() if self.norm_by_std else None
        for key, weight in zip(self.keys, self.key_weights or np.ones(len(self.keys)), strict=True):
            value = table.component(key)
            baseline, scale = compare(value, group, Mean(), std, self.eps, "raw")
            stages.append((f"advantage of {key}", (value - baseline) / scale))
            total = total + weight * stages[-1][1]
        stages.append(("weighted sum", total))
        policy = combine([table.policy.codes], len(table))
        tokens = np.bincount(policy, weights=table.length)
        mean = np.bincount(policy, weights=table.length * total) / np.maximum(tokens, 1)
        squares = np.bincount(policy, weights=table.length * (total - mean[policy]) ** 2)
        scale = np.sqrt(squares / np.maximum(tokens - 1, 1) + 1e-8)
        rows = np.arange(len(table))
        return AdvantageResult(total, reward, mean[policy], scale[policy], group, rows, self.group, stages)


GDPO = Algorithm(advantage=Decoupled())
"""Each of `keys` normalised over the rows of a task, then summed and whitened over the policy's tokens."""


def gdpo(rows: PlainRows, keys: Sequence[str] = ("team",), weights: Sequence[float] = (1.0,)) -> list[float]:
    parts = [in_groups([row["rewards"][key] for row in rows], rows, ["uid"], raw=True) for key in keys]
    totals = np.array(weights) @ np.array(parts)
    advantages = []
    for row, total in zip(rows, totals, strict=True):
        mine = [i for i, other in enumerate(rows) if other.get("policy") == row.get("policy")]
        tokens = np.repeat(totals[mine], [rows[i]["length"] for i in mine])
        variance = tokens.var(ddof=1) if len(tokens) > 1 else 0.0
        advantages.append(float((total - tokens.mean()) / np.sqrt(variance + 1e-8)))
    return advantages


REFERENCES = {"gdpo": gdpo}
