"""Means and spreads of groups, and what happens to a group of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.advantage.part import Part
from marl_verl.advantage.rows import FloatArray, IntArray
from marl_verl.errors import MarlError

SINGLETONS = ("zero", "raw", "batch")


def check_eps(eps: float) -> None:
    """MarlError unless eps is a number >= 0 (NaN is none)."""
    if not 0 <= eps < np.inf:
        raise MarlError(f"'eps' must be >= 0, got {eps}")


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
        return group_std(value, group, 1)


@dataclass(frozen=True)
class Population(Scale):
    """sigma = sqrt(sum (R - mean)^2 / n)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return group_std(value, group, 0)


def group_mean(value: FloatArray, group: IntArray) -> FloatArray:
    """[G] mean of `value` [S] over each group.

    mean = m + mean(value - m) with m the group's minimum: a constant group then has exactly its constant as mean, and
    later an advantage of exactly 0, instead of a rounding error that a small std would blow up.
    """
    low = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(low, group, value)
    return low + np.bincount(group, weights=value - low[group]) / np.bincount(group)


def group_std(value: FloatArray, group: IntArray, ddof: int) -> FloatArray:
    """[G] sqrt(sum (x - mean)^2 / (n - ddof)) of `value` [S] per group; 0 where n - ddof is 0."""
    deviation = value - group_mean(value, group)[group]
    count = np.bincount(group) - ddof
    return np.sqrt(np.bincount(group, weights=deviation**2) / np.maximum(count, 1))


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
    if singleton == "zero":
        return Compared(np.where(alone, value, compared.baseline), np.where(alone, unit, compared.scale))
    if singleton == "raw":
        return Compared(np.where(alone, 0.0, compared.baseline), np.where(alone, unit, compared.scale))
    return Compared(np.where(alone, batch.baseline, compared.baseline), np.where(alone, batch.scale, compared.scale))
