"""Numbers of a run that a claim is about, from its run directory."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from marl_verl_report.measures import column

from marl_verl.inspect.run_files import Run

POINTS = 0.05
DECADES = 0.18
RATIO = 0.2
"""Differences that do not matter: 5 points of a share, a factor of 1.5 of a gradient norm, 0.2 of a ratio near 1."""

SUCCESS, SAMPLED = "validation/success", "validation/success_sampled"


@dataclass(frozen=True)
class Measure:
    """A number of a run.

    Attributes:
        key: its name in the stored cells.
        label: the head of its column, with the unit.
        percent: whether it is a share, shown as a percentage.
        margin: a difference that does not matter, in its unit; None: any does.
    """

    key: str
    label: str
    of_run: Callable[[Run], float]
    percent: bool = False
    margin: float | None = None


def last(metric: str) -> Callable[[Run], float]:
    return lambda run: column(run, metric)[-1]


def mean(metric: str) -> Callable[[Run], float]:
    """Over all steps."""
    return lambda run: statistics.fmean(column(run, metric))


def gain(metric: str) -> Callable[[Run], float]:
    """From the first to the last record."""
    return lambda run: column(run, metric)[-1] - column(run, metric)[0]


def area(run: Run) -> float:
    """Mean of the greedy success over the validations after the first: the area under the learning curve."""
    return statistics.fmean(column(run, SUCCESS)[1:])


def largest(policy: str) -> Callable[[Run], float]:
    """Largest gradient norm of a policy over the steps."""
    return lambda run: max(column(run, f"policy/{policy}/grad_norm"))


def log10(of: Callable[[Run], float]) -> Callable[[Run], float]:
    """The decimal logarithm of a measure of several orders of magnitude, whose means and intervals mean little."""
    return lambda run: math.log10(of(run))


def spikes(policy: str) -> Callable[[Run], float]:
    """Largest gradient norm of a policy, divided by the median over the steps."""

    def of_run(run: Run) -> float:
        norms = column(run, f"policy/{policy}/grad_norm")
        return max(norms) / statistics.median(norms)

    return of_run


GREEDY = Measure("success", "success, greedy", last(SUCCESS), percent=True, margin=POINTS)
SAMPLING = Measure("sampled", "success, sampled", last(SAMPLED), percent=True, margin=POINTS)
AREA = Measure("area", "mean of the learning curve", area, percent=True, margin=POINTS)
