"""Means over seeds: the learning curves of runs that differ in nothing else, with intervals of Student's t."""

import functools
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_verl_report.curves import Line, digits

FEWEST = 3
"""Number of runs from which on their mean is drawn."""

OWN = re.compile(r"\+{0,2}marl\.run\.(seed|name|dir)=")
"""An override that differs between seeds."""

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


def groups(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The groups of runs (of `overview.read`) that differ only in seed and directory: {"name", "runs", "lines"}."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for at, run in enumerate(runs):
        if run["starts"] and (words := run["starts"][0].get("arguments")):
            alike.setdefault(tuple(word for word in words if not OWN.match(word)), []).append(at)
    groups = [members for members in alike.values() if len({runs[at]["seed"] for at in members}) == len(members)]
    return [_group(runs, members) for members in groups if len(members) >= FEWEST]


def _group(runs: Sequence[Mapping[str, Any]], members: list[int]) -> dict[str, Any]:
    names = [runs[at]["name"] for at in members]
    same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in same).rstrip("-_. 0123456789") or names[0]
    lines = means([runs[at]["lines"] for at in members])
    return {"name": f"{common} ({len(members)} runs)", "runs": members, "lines": lines}


def means(runs: Sequence[Sequence[Line]]) -> list[Line]:
    """The mean of each line that all runs have, at the steps at which each of them has a value."""
    lines = []
    others = [{(line["chart"], line["label"]): line for line in run} for run in runs]
    for line in runs[0]:
        points = [_finite(other.get((line["chart"], line["label"]))) for other in others]
        common = [x for x in line["x"] if all(x in point for point in points)]
        at = {x: estimate([point[x] for point in points]) for x in common}
        if at:
            columns = (("y", "mean"), ("low", "low"), ("high", "high"))
            band = {key: [digits(getattr(value, name)) for value in at.values()] for key, name in columns}
            lines.append({**line, "x": list(at), **band})
    return lines


def _finite(line: Line | None) -> dict[float, float]:
    pairs = zip(line["x"], line["y"], strict=True) if line else ()
    return {x: y for x, y in pairs if y is not None}
