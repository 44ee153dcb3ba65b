"""Means over seeds: the learning curves of runs that differ in nothing else, with intervals of Student's t."""

from __future__ import annotations

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

# the quantile 0.975 of Student's t for 1, 2, ... degrees of freedom
T = (
    *(12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302),
)
MOST = len(T) + 1
"""Number of seeds for which an interval can be computed."""


@dataclass(frozen=True)
class Estimate:
    """A mean over n seeds and its 95 % interval, which is infinite for one seed."""

    mean: float
    low: float
    high: float
    n: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean m of 1 to `MOST` values, one per seed, and m -+ t s / sqrt(n)."""
    mean, n = statistics.fmean(values), len(values)
    if n == 1:
        return Estimate(mean, -math.inf, math.inf, 1)
    half = T[n - 2] * statistics.stdev(values) / math.sqrt(n)
    return Estimate(mean, mean - half, mean + half, n)


def groups(runs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The groups of runs (of `overview.read`) that differ only in seed and directory: {"name", "runs", "lines"}."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for at, run in enumerate(runs):
        if run["starts"] and (words := run["starts"][0].get("arguments")):
            alike.setdefault(tuple(word for word in words if not OWN.match(word)), []).append(at)
    groups = [members for members in alike.values() if len({runs[at]["seed"] for at in members}) == len(members)]
    return [_group(runs, members) for members in groups if FEWEST <= len(members) <= MOST]


def _group(runs: Sequence[Mapping[str, Any]], members: list[int]) -> dict[str, Any]:
    names = [runs[at]["name"] for at in members]
    same = itertools.takewhile(lambda letters: len({*letters}) == 1, zip(*names, strict=False))
    common = "".join(letters[0] for letters in same).rstrip("-_. 0123456789") or names[0]
    return {
        "name": f"{common} ({len(members)} runs)",
        "runs": members,
        "lines": means([runs[at]["lines"] for at in members]),
    }


def means(runs: Sequence[Sequence[Line]]) -> list[Line]:
    """The mean of each line that all runs have, at the steps at which each of them has a value."""
    lines = []
    others = [{(line["chart"], line["label"]): line for line in run} for run in runs]
    for line in runs[0]:
        points = [_finite(other.get((line["chart"], line["label"]))) for other in others]
        common = [x for x in line["x"] if all(x in point for point in points)]
        at = {x: estimate([point[x] for point in points]) for x in common}
        if at:
            band = {
                "y": [digits(value.mean) for value in at.values()],
                "low": [digits(value.low) for value in at.values()],
                "high": [digits(value.high) for value in at.values()],
            }
            lines.append({**line, "x": list(at), **band})
    return lines


def _finite(line: Line | None) -> dict[float, float]:
    """Step -> value, without gaps."""
    pairs = zip(line["x"], line["y"], strict=True) if line else ()
    return {x: y for x, y in pairs if y is not None}
