"""Means over seeds, with intervals of Student's t."""

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds, the sample standard deviation, and the interval of the mean, infinite for one seed."""

    mean: float
    low: float
    high: float
    n: int
    deviation: float


def estimate(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """The mean m of values, one per seed, and its interval m -+ t s / sqrt(n) of Student's t."""
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1, math.nan)
    deviation = statistics.stdev(values)
    half = quantile(n - 1, level) * deviation / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n, deviation)


@functools.cache
def quantile(freedom: int, level: float = LEVEL) -> float:
    """t with P(|T| <= t) = level, for Student's T with a number of degrees of freedom, by bisection."""
    low, high = 0.0, 1.0
    while inside(high, freedom) < level:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle, freedom) < level else (low, middle)
    return high


def inside(t: float, freedom: int) -> float:
    """P(|T| <= t) for Student's T (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term, total = (math.cos(angle) if odd else 1.0), 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= (power + 1) / (power + 2) * math.cos(angle) ** 2
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
