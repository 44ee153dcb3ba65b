"""Means over seeds with intervals of Student's t, and what the difference of two arms over paired seeds decides.

At each look at the seeds so far, the comparison ends if the interval of the difference decides. With L looks, each
interval has the level 1 - 0.05 / L. By the union bound all L of them hold at once with probability 0.95 or more, so
that whatever is decided, at whichever look, is wrong in at most 5 % of comparisons.
"""

import bisect
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mpmath

LEVEL = 0.95
FIRST = 10
MOST = 10_000  # number of seeds above which none is suggested


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
    """t with P(|T| <= t) = level, for Student's T with n degrees of freedom, up to 10,000 (Abramowitz and Stegun 1964,
    26.7.1): P(|T| > t) = I_x(n / 2, 1 / 2) with x = n / (n + t^2)."""

    def missing(x: float) -> Any:
        return mpmath.betainc(freedom / 2, 0.5, 0, x, regularized=True) - (1 - level)

    x = float(mpmath.findroot(missing, (0, 1), solver="bisect"))
    return math.sqrt(freedom * (1 / x - 1))


def looks(seeds: int, first: int = FIRST) -> list[int]:
    """The numbers of seeds at which a comparison of at most `seeds` seeds may end: `first`, twice as many, ..., all."""
    return [first, *looks(seeds, 2 * first)] if first < seeds else [seeds]


def level(looks: int) -> float:
    """Level of each interval of a comparison with a number of looks."""
    return 1 - (1 - LEVEL) / looks


def difference(first: Mapping[int, float], second: Mapping[int, float], level: float) -> Estimate:
    """The mean of first - second over their common seeds, and its interval."""
    return estimate([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())], level)


def decided(effect: Estimate, margin: float | None = None) -> str | None:
    """What an interval says: "higher" or "lower" than 0, "within" -margin and margin, or None."""
    if effect.low > 0 or effect.high < 0:
        return "higher" if effect.low > 0 else "lower"
    return "within" if margin is not None and max(-effect.low, effect.high) <= margin else None


def needed(effect: Estimate, fixed: float | None, margin: float | None = None) -> int | None:
    """The number of seeds whose interval would decide, if mean and deviation stayed as they are. None: over `MOST`.
    `fixed`: the level of the interval; None: that of a comparison of so many seeds, which has more looks."""
    room = abs(effect.mean) if margin is None else max(abs(effect.mean), margin - abs(effect.mean))

    def enough(n: int) -> bool:
        return quantile(n - 1, fixed or level(len(looks(n)))) * effect.deviation < room * math.sqrt(n)

    start = max(effect.n, 2)
    for end in looks(MOST):  # up to which the level is the same
        if start <= end and (n := bisect.bisect_left(range(end + 1), True, lo=start, key=enough)) <= end:
            return n
        start = max(start, end + 1)
    return None
