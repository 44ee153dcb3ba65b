"""Baselines and scales: A = (R - baseline) / scale, one baseline and one scale per group of samples."""

from __future__ import annotations

import numpy as np

from marl_verl.advantage.rows import FloatArray, IntArray

STDS = ("unbiased", "population")
SINGLETONS = ("zero", "raw", "batch")


def group_mean(value: FloatArray, group: IntArray) -> FloatArray:
    """[G] mean of `value` [S] over each group.

    mean = m + mean(value - m) with m the group's minimum: a constant group then has exactly its constant as mean, and
    later an advantage of exactly 0, instead of a rounding error that a small std would blow up.
    """
    low = np.full(int(group.max()) + 1, np.inf)
    np.minimum.at(low, group, value)
    return low + np.bincount(group, weights=value - low[group]) / np.bincount(group)


def group_std(value: FloatArray, group: IntArray, std: str) -> FloatArray:
    """[G] std of `value` [S] per group: sqrt(sum (x - mean)^2 / (n - 1)), or / n for "population"; one alone: 0."""
    deviation = value - group_mean(value, group)[group]
    count = np.bincount(group) - (1 if std == "unbiased" else 0)
    return np.sqrt(np.bincount(group, weights=deviation**2) / np.maximum(count, 1))


def baseline_and_scale(
    value: FloatArray, group: IntArray, *, norm_by_std: bool, std: str, eps: float, singleton: str
) -> tuple[FloatArray, FloatArray]:
    """Per group, [G] each: baseline = mean, scale = std + eps (1 with `norm_by_std` off).

    A group of one has nothing to be compared with; `singleton` says what happens to it:
        zero   A = 0: baseline = its own value.
        raw    A = R / (1 + eps): baseline 0 and std 1, as in verl's GRPO and Dr. MAS.
        batch  compared with all samples of the batch: their mean and std. This alone lets rows outside a group matter.

    Args:
        value: [S] return of each sample.
        group: [S] group of each sample, ids 0..G-1 without gaps.
    """
    mean = group_mean(value, group)
    spread = group_std(value, group, std)
    alone = np.bincount(group) == 1
    if singleton == "raw":
        mean, spread = np.where(alone, 0.0, mean), np.where(alone, 1.0, spread)
    elif singleton == "batch":
        everyone = np.zeros(len(value), dtype=np.int64)
        mean = np.where(alone, group_mean(value, everyone), mean)
        spread = np.where(alone, group_std(value, everyone, std), spread)
    scale = spread + eps if norm_by_std else np.ones_like(spread)
    return mean, np.where(scale > 0, scale, 1.0)  # eps 0 and no spread: every deviation is 0, whatever the scale
