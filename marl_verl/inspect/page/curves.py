"""Learning curves: the lines of each chart, with intervals, and all metrics of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.trainer.report import wilson

POINTS = 300
"""Maximum number of points of a line: of more steps, every n-th is drawn."""

WINDOW = 5
"""Minimum number of steps of the running mean of a metric of training."""

CHARTS = (
    # title; in title and pattern, {} is a part of the metric's name; unit
    ("Reward", r"agent/(?P<line>.+?)/reward", "mean reward of a turn"),
    ("Reward: component {}", r"agent/(?P<line>.+?)/reward/(?P<chart>.+)", "mean of the component"),
    ("Response length", r"agent/(?P<line>.+?)/response_length", "tokens"),
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
SUCCESS = (
    ("held-out, greedy", "validation/success"),
    ("held-out, sampled", "validation/success_sampled"),
    ("training, sampled", "train/success"),
)
SIDE = re.compile(r"(?P<when>train|validation)/side/(?P<side>.+)/wins(?:_(?P<how>sampled))?")
NOTES = (
    "Bands are 95 % intervals. Held-out success: Wilson's interval over the held-out tasks. A metric of training: mean "
    "of the last steps and 1.96 standard errors of that mean, as if steps were independent.",
    "A chart is left out where the run has not recorded its metric, e.g. entropy without an entropy term in the loss.",
)

Line = dict[str, Any]  # {"chart", "unit", "label", "metric", "x", "y"} and, for a band, {"low", "high"}


def columns(records: Sequence[Mapping[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    """Metric -> (steps, values), in the order of its first occurrence."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for record in records:
        for name, value in record.items():
            if name != "step" and isinstance(value, int | float):
                steps, values = found.setdefault(name, ([], []))
                steps.append(record["step"])
                values.append(float(value))
    return found


def lines(records: Sequence[Mapping[str, float]], tasks: int) -> list[Line]:
    """The lines of all charts of a run that validates on `tasks` held-out tasks, in the order of the charts."""
    metrics, found = columns(records), []
    for label, name in SUCCESS:
        if name in metrics:
            band = (name, tasks) if name.startswith("validation/") else None
            found.append(_line("Team success", "share of episodes", label, name, metrics[name], band))
    for name in metrics:
        if match := SIDE.fullmatch(name):
            held_out = match["when"] == "validation"
            how = "training, sampled" if not held_out else f"held-out, {match['how'] or 'greedy'}"
            band = (name, tasks) if held_out else None
            label = f"{match['side']}, {how}"
            found.append(_line("Wins of each side", "share of episodes", label, name, metrics[name], band))
    for title, pattern, unit in CHARTS:
        for name in metrics:
            if match := re.fullmatch(pattern, name):
                chart = title.format(match.groupdict().get("chart", ""))
                found.append(_line(chart, unit, match["line"], name, metrics[name]))
    return found


def every_metric(records: Sequence[Mapping[str, float]]) -> dict[str, dict[str, list[float | None]]]:
    """Metric -> its points, without a running mean."""
    return {name: _points({"x": x, "y": y}) for name, (x, y) in columns(records).items()}


def _line(
    chart: str,
    unit: str,
    label: str,
    metric: str,
    points: tuple[list[float], list[float]],
    held_out: tuple[str, int] | None = None,
) -> Line:
    """One line; `held_out`: (metric, number of tasks) of a validation, else the metric is of training."""
    x, values = points[0], np.asarray(points[1], dtype=float)
    if held_out is not None:
        bands = [wilson(value * held_out[1], held_out[1]) for value in values.tolist()]
        y, low, high = values, np.array([band[0] for band in bands]), np.array([band[1] for band in bands])
    else:
        y, low, high = _running(values, max(WINDOW, len(values) // 100))
    shown = _points({"x": x, "y": y.tolist(), "low": low.tolist(), "high": high.tolist()})
    return {"chart": chart, "unit": unit, "label": label, "metric": metric, **shown}


def _running(values: np.ndarray[Any, Any], window: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Mean of the last `window` values and its 95 % interval m -+ 1.96 s / sqrt(n), per step; NaN for one value.

    n is the number of finite values; the mean is NaN where the step's own value is not finite.
    """
    finite = np.isfinite(values)
    clean = np.where(finite, values, 0.0)
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - window, 0)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        totals = (np.cumsum(np.concatenate([[0.0], part])) for part in (finite, clean, clean**2))
        n, total, squares = (part[last] - part[first] for part in totals)
        mean = np.where(finite, total / n, np.nan)
        error = 1.96 * np.sqrt(np.maximum(squares / n - mean**2, 0.0) / np.where(n > 1, n - 1, np.nan))
    return mean, mean - error, mean + error


def _points(series: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """At most `POINTS` points, the last one included, with five digits; NaN and infinity are gaps."""
    count = len(series["x"])
    every = -(-count // POINTS)
    kept = [at for at in range(count) if (count - 1 - at) % max(every, 1) == 0]
    return {name: [_number(values[at]) for at in kept] for name, values in series.items()}


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None
