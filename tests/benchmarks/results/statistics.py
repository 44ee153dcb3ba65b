"""Means over seeds with 95 % intervals of Student's t.

    mean -+ t(n - 1) s / sqrt(n),    s^2 = sum (x - mean)^2 / (n - 1)

Two arms that were trained with the same seeds are compared by the interval of the paired differences, x_i - y_i.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# the quantile 0.975 of Student's t for 1, 2, ... degrees of freedom
T = (
    *(12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302),
)
MOST = len(T) + 1
"""Number of seeds that an interval can be computed for."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds and its 95 % interval, which is infinite for one seed."""

    mean: float
    low: float
    high: float
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of 1 to 20 values, one per seed."""
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    half = T[n - 2] * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)
