"""What a sample is compared with: baselines, scales, and the policy for a group of one.

Everywhere `value` [S] are the returns of samples, `group` [S] ids 0..G-1 without gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.advantage.columns import FloatArray, IntArray, extremes, group_mean
from marl_verl.advantage.part import Part
from marl_verl.errors import MarlError

SINGLETONS = ("zero", "raw", "batch")


def check_eps(eps: float) -> None:
    """MarlError unless eps is a number >= 0 (NaN is none)."""
    if not 0 <= eps < np.inf:
        raise MarlError(f"'eps' must be >= 0, got {eps}")


class Baseline(Part):
    """b in A = R - b."""

    kind: ClassVar[str] = "baselines"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One baseline per sample [S]. `value` [S] are returns, `group` [S] ids 0..G-1 without gaps."""
        raise NotImplementedError


@dataclass(frozen=True)
class Mean(Baseline):
    """b = mean of the group's returns (GRPO, arXiv 2402.03300)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return group_mean(value, group)[group]


@dataclass(frozen=True)
class LeaveOneOut(Baseline):
    """b_i = (sum of the group's returns - R_i) / (n - 1): the mean of the others (RLOO, arXiv 2402.14740).

    With it A_i = (n R_i - sum) / (n - 1). A group of one has no others: b = R, so A = 0.
    """

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        count, low = np.bincount(group)[group], extremes(value, group)[0][group]
        above = value - low  # from the group's minimum, so that a constant group has exactly its constant
        others = np.bincount(group, weights=above)[group] - above
        return np.where(count > 1, low + others / np.maximum(count - 1, 1), value)


@dataclass(frozen=True)
class Max(Baseline):
    """b = the group's highest return: A <= 0, and the best sample is neither pushed nor pulled (MAGRPO's code)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return extremes(value, group)[1][group]


@dataclass(frozen=True)
class NoBaseline(Baseline):
    """b = 0: A = R (REINFORCE)."""

    name: ClassVar[str] = "none"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return np.zeros(len(value))


class Scale(Part):
    """sigma in A = (R - b) / (sigma + eps)."""

    kind: ClassVar[str] = "scales"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One spread per group [G]. `value` [S] are returns, `group` [S] ids 0..G-1 without gaps."""
        raise NotImplementedError


@dataclass(frozen=True)
class Unbiased(Scale):
    """sigma = sqrt(sum (R - mean)^2 / (n - 1)); of one alone 0."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return _std(value, group, 1)


@dataclass(frozen=True)
class Population(Scale):
    """sigma = sqrt(sum (R - mean)^2 / n)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return _std(value, group, 0)


def _std(value: FloatArray, group: IntArray, ddof: int) -> FloatArray:
    """[G] sqrt(sum (x - mean)^2 / (n - ddof)); 0 where n - ddof is 0."""
    deviation = value - group_mean(value, group)[group]
    return np.sqrt(np.bincount(group, weights=deviation**2) / np.maximum(np.bincount(group) - ddof, 1))


@dataclass(frozen=True)
class Compared:
    """What samples were compared with, each [S]: A = (value - baseline) / scale."""

    baseline: FloatArray
    scale: FloatArray


def treat_singletons(
    compared: Compared, value: FloatArray, group: IntArray, batch: Compared, singleton: str, unit: float
) -> Compared:
    """Give groups of one sample what `singleton` says, since there is nothing to compare them with.

        zero   A = 0: the baseline is its own value.
        raw    A = R / unit: baseline 0, as in verl's GRPO and Dr. MAS.
        batch  compared with all samples of the batch. This alone lets rows outside a group matter.

    Args:
        batch: what the whole batch as one group gives.
        unit: the scale of a raw one: 1 + eps where there is a std, else 1.
    """
    alone = np.bincount(group)[group] == 1
    others = {"zero": (value, unit), "raw": (0.0, unit), "batch": (batch.baseline, batch.scale)}
    baseline, scale = others[singleton]
    return Compared(np.where(alone, baseline, compared.baseline), np.where(alone, scale, compared.scale))
