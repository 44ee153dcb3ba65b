"""What the difference of two arms over paired seeds decides, with looks at the seeds on the way.

At each look at the seeds so far, the comparison ends if the interval of the difference decides. With L looks, each
interval has the level 1 - 0.05 / L. By the union bound all L of them hold at once with probability 0.95 or more, so
that whatever is decided, at whichever look, is wrong in at most 5 % of comparisons.
"""

import bisect
import math
from collections.abc import Mapping

from marl_verl_report.seeds import LEVEL, Estimate, estimate, quantile

FIRST = 10
MOST = 10_000
"""Number of seeds above which none is suggested."""


def looks(seeds: int, first: int = FIRST) -> list[int]:
    """The numbers of seeds at which a comparison of at most `seeds` seeds may end: `first`, twice as many, ..., all."""
    return [first, *looks(seeds, 2 * first)] if first < seeds else [seeds]


def stages(first: int, seeds: int) -> list[range]:
    """The seeds from `first` on that are trained before each look."""
    ends = looks(seeds)
    return [range(first + start, first + end) for start, end in zip([0, *ends], ends, strict=False)]


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


def needed(effect: Estimate, level: float, margin: float | None = None) -> int | None:
    """The number of seeds whose interval would decide, if mean and deviation stayed as they are. None: over `MOST`."""
    room = abs(effect.mean) if margin is None else max(abs(effect.mean), margin - abs(effect.mean))

    def enough(n: int) -> bool:
        return quantile(n - 1, level) * effect.deviation < room * math.sqrt(n)

    n = bisect.bisect_left(range(MOST), True, lo=max(effect.n, 2), key=enough)
    return n if n < MOST else None
