"""Baselines, scales, and the treatment of groups of one sample.

In this module `value` [S] are the returns of samples, `group` [S] ids 0..G-1 without gaps.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray, IntArray, extremes, group_mean, numbers_of, read_only
from marl_verl.options import Part


class Baseline(Part):
    """b in A = R - b."""

    kind: ClassVar[str] = "baseline"

    @abstractmethod
    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One baseline per sample [S]."""


@dataclass(frozen=True)
class Mean(Baseline):
    """b = mean of the group's returns (GRPO, arXiv 2402.03300)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return group_mean(value, group)[group]


@dataclass(frozen=True)
class LeaveOneOut(Baseline):
    """b_i = (sum of the group's returns - R_i) / (n - 1): the mean of the others (RLOO, arXiv 2402.14740).

    Hence A_i = (n R_i - sum) / (n - 1). In a group of one, b = R and A = 0.
    """

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        count, low = np.bincount(group)[group], extremes(value, group)[0][group]
        above = value - low  # relative to the group's minimum, so that the mean of a constant group is exact
        others = np.bincount(group, weights=above)[group] - above
        return low + others / np.maximum(count - 1, 1)  # alone: low + 0, its own value


@dataclass(frozen=True)
class Max(Baseline):
    """b = the group's highest return, so that A <= 0 the best sample has A = 0 (MAGRPO's code, arXiv 2508.04652)."""

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

    kind: ClassVar[str] = "scale"

    @abstractmethod
    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One spread per group [G]."""


@dataclass(frozen=True)
class Unbiased(Scale):
    """sigma = sqrt(sum (R - mean)^2 / (n - 1)); 0 for a group of one."""

    ddof: ClassVar[int] = 1

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        deviation = value - group_mean(value, group)[group]
        return np.sqrt(np.bincount(group, weights=deviation**2) / np.maximum(np.bincount(group) - self.ddof, 1))


@dataclass(frozen=True)
class Population(Unbiased):
    """sigma = sqrt(sum (R - mean)^2 / n)."""

    ddof: ClassVar[int] = 0


def compare(
    value: FloatArray,
    group: IntArray,
    baseline: Baseline,
    std: Scale | None,
    eps: float,
    singleton: str,
    spread: IntArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Baseline and scale of each sample, [S] each: A = (value - baseline) / scale.

    Args:
        std: sigma in A = (value - b) / (sigma + eps); None for A = value - b.
        singleton: advantage of a group of one sample:
            zero   A = 0: the baseline is its own value.
            raw    A = value / (1 + eps), without `std` A = value: baseline 0, as in verl's GRPO and Dr. MAS.
            batch  compared with all samples of the batch; the only setting that depends on rows outside the group.
        spread: ids [S] of other groups for sigma, which is then the spread of value - b in these groups.
    """

    value, group = value.view(), group.view()  # which parts must not change

    def within(group: IntArray) -> tuple[FloatArray, FloatArray]:
        read_only(value, group)
        b = numbers_of(baseline.compute(value, group), len(value), baseline.described)
        if std is None:
            return b, np.ones(len(value))
        of, among = (value, group) if spread is None else (value - b, spread)
        read_only(among)
        sigma = numbers_of(std.compute(of, among), int(among.max()) + 1, std.described)[among]
        # with sigma 0 a deviation is kept as it is, instead of being divided by eps
        scale = np.where((sigma == 0) & (value != b), 1.0, sigma) + eps
        return b, np.where(scale <= 0, 1.0, scale)

    b, scale = within(group)
    if baseline.name == "none" and std is None:
        return b, scale  # nothing is compared, so that groups of one need no special treatment
    if singleton == "batch":
        b_alone, scale_alone = within(np.zeros(len(value), dtype=np.int64))
    else:
        b_alone = value if singleton == "zero" else np.zeros(len(value))
        scale_alone = np.full(len(value), 1.0 if std is None else 1.0 + eps)
    alone = np.bincount(group)[group] == 1
    return np.where(alone, b_alone, b), np.where(alone, scale_alone, scale)
