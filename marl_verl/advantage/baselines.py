"""Baselines: what a sample's return is compared with, from the samples of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.advantage.normalise import group_mean
from marl_verl.advantage.part import Part
from marl_verl.advantage.rows import FloatArray, IntArray


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
        count = np.bincount(group)[group]
        low = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(low, group, value)
        above = value - low[group]  # from the group's minimum, so that a constant group has exactly its constant
        others = np.bincount(group, weights=above)[group] - above
        return np.where(count > 1, low[group] + others / np.maximum(count - 1, 1), value)


@dataclass(frozen=True)
class Max(Baseline):
    """b = the group's highest return: A <= 0, and the best sample is neither pushed nor pulled (MAGRPO's code)."""

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        high = np.full(int(group.max()) + 1, -np.inf)
        np.maximum.at(high, group, value)
        return high[group]


@dataclass(frozen=True)
class NoBaseline(Baseline):
    """b = 0: A = R (REINFORCE)."""

    name: ClassVar[str] = "none"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        return np.zeros(len(value))
