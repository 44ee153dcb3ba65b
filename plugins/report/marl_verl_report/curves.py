"""Learning curves: the lines of each chart, with intervals, and all metrics of a run."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.tasks.base import wilson

POINTS = 1000  # maximum number of points of a line: of more, the largest of each two, three, ... is drawn
WINDOW = (5, 100)  # minimum and maximum number of steps of the running mean of a metric of training
SHARE = "share of episodes"

CHARTS = (
    # title; in title and pattern, {} is a part of the metric's name; unit
    ("Team success", r"(?P<line>validation/success(_sampled)?|train/success)", SHARE),
    ("Wins of each side", r"(?P<line>(train|validation)/side/.+/wins(_sampled)?)", SHARE),
    ("Reward", r"agent/(?P<line>.+?)/reward", "mean reward of a turn"),
    ("Reward: component {}", r"agent/(?P<line>.+?)/reward/(?P<chart>.+)", "mean of the component"),
    ("Held-out success by set", r"validation/set/(?P<line>.+)/success", "share of tasks, greedy"),
    ("Answers: {}", r"(?P<line>train|validation)/answer/(?P<chart>.+)(?<!_sampled)", "mean of the episodes"),
    ("Response length", r"agent/(?P<line>.+?)/response_length", "tokens"),
    ("Read from other agents", r"agent/(?P<line>.+?)/read_length", "tokens an act"),
    ("Invalid actions", r"agent/(?P<line>.+?)/invalid", "share of turns"),
    ("Groups without variance", r"agent/(?P<line>.+?)/zero_variance", "share of groups, whose advantages are 0"),
    ("Advantage", r"agent/(?P<line>.+?)/advantage_std", "standard deviation"),
    ("Entropy", r"policy/(?P<line>.+?)/entropy", "nats per token"),
    ("KL to the policy that sampled", r"policy/(?P<line>.+?)/ppo_kl", "nats per token"),
    ("KL to the initial weights", r"policy/(?P<line>.+?)/kl_loss", "nats per token"),
    ("Gradient norm", r"policy/(?P<line>.+?)/grad_norm", "before clipping"),
    ("Tokens per step", r"train/(?P<line>tokens)", "sampled tokens"),
    ("Seconds per step by phase", r"seconds/(?P<line>.+)", "seconds"),
)

NOTES = (
    "Bands are 95 % intervals. Held-out success: Wilson's interval over the held-out tasks. A metric of training: mean "
    "of the last steps and 1.96 standard errors of that mean, as if steps were independent.",
    "A chart is left out where the run has not recorded its metric, e.g. entropy without an entropy term in the loss.",
)

Points = tuple[list[float], list[float]]  # steps, values
Line = dict[str, Any]  # {"chart", "unit", "label", "metric", "x", "y"} and, for a band, {"low", "high"}


def columns(records: Sequence[Mapping[str, float]]) -> dict[str, Points]:
    """Metric -> (steps, values), in the order of its first occurrence."""
    table: dict[str, Points] = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                steps, values = table.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(float(value))
    return table


def lines(records: Sequence[Mapping[str, float]], tasks: int) -> list[Line]:
    """The lines of all charts of a run that validates on `tasks` held-out tasks, in the order of the charts."""
    metrics, drawn = columns(records), []
    for title, pattern, unit in CHARTS:
        for name in metrics:
            if match := re.fullmatch(pattern, name):
                chart = title.format(match.groupdict().get("chart", ""))
                drawn.append(_line(chart, unit, match["line"], name, metrics[name], tasks))
    return drawn


def every_metric(records: Sequence[Mapping[str, float]]) -> dict[str, dict[str, list[float | None]]]:
    """Metric -> its points, without a running mean."""
    return {name: _points({"x": x, "y": y}) for name, (x, y) in columns(records).items()}


def _line(chart: str, unit: str, label: str, metric: str, points: Points, tasks: int) -> Line:
    x, values = points[0], np.asarray(points[1], dtype=float)
    series: dict[str, Any] = {"x": x, "y": values}
    if not metric.startswith("validation/"):
        series["y"], series["low"], series["high"] = _running(values, min(max(WINDOW[0], len(x) // 100), WINDOW[1]))
    elif unit == SHARE:
        series["low"], series["high"] = zip(*(wilson(value * tasks, tasks) for value in values), strict=True)
    return {"chart": chart, "unit": unit, "label": label, "metric": metric, **_points(series)}


def _running(values: np.ndarray[Any, Any], window: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Mean of the last `window` values and its 95 % interval m -+ 1.96 s / sqrt(n), per step; NaN for one value.

    n is the number of finite values; the mean is NaN where the step's own value is not finite.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, (window - 1, 0), constant_values=np.nan), window)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # windows with one finite value, or none
        mean = np.where(np.isnan(values), np.nan, np.nanmean(windows, axis=1))
        error = 1.96 * np.nanstd(windows, axis=1, ddof=1) / np.sqrt(np.isfinite(windows).sum(axis=1))
    return mean, mean - error, mean + error


def _points(series: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """At most `POINTS` points with five digits; NaN and infinity are gaps."""
    size, every = np.nan_to_num(np.abs(series["y"])), -(-len(series["y"]) // POINTS)
    kept = [start + int(size[start : start + every].argmax()) for start in range(0, len(size), every)]
    return {name: [digits(values[point]) for point in kept] for name, values in series.items()}


def digits(value: float) -> float | None:
    """A number of the page, with five digits; None for NaN and infinity."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
