"""Numbers of a run that a claim is about, from its run directory."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from marl_verl_report.arms import column, measured

from marl_verl.run.reading import Run

POINTS, DECADES, RATIO = 0.05, 0.18, 0.2
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


def of(measure: str) -> Callable[[Run], float]:
    """A measure of `marl-verl compare`, e.g. "mean:train/tokens"."""
    return partial(measured, measure=measure)


def largest(policy: str) -> Callable[[Run], float]:
    """Largest gradient norm of a policy over the steps."""
    return of(f"max:policy/{policy}/grad_norm")


def log10(value: Callable[[Run], float]) -> Callable[[Run], float]:
    """The decimal logarithm of a measure of several orders of magnitude, whose means and intervals mean little."""
    return lambda run: math.log10(value(run))


def spikes(policy: str) -> Callable[[Run], float]:
    """Largest gradient norm of a policy, divided by the median over the steps."""

    def of_run(run: Run) -> float:
        norms = column(run, f"policy/{policy}/grad_norm")
        return max(norms) / statistics.median(norms)

    return of_run


GREEDY = Measure("success", "success, greedy", of(SUCCESS), percent=True, margin=POINTS)
SAMPLING = Measure("sampled", "success, sampled", of(SAMPLED), percent=True, margin=POINTS)
AREA = Measure("area", "mean of the learning curve", of(f"area:{SUCCESS}"), percent=True, margin=POINTS)
