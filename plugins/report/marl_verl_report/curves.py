"""Learning curves: the lines of each chart, with intervals, and all metrics of a run."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marl_verl.trainer.report import wilson

POINTS = 400
"""Maximum number of points of a line: of more, the smallest and largest of neighbouring ones are drawn, and gaps."""

WINDOW = (5, 100)
"""Minimum and maximum number of steps of the running mean of a metric of training."""

CHARTS = (
    # title; in title and pattern, {} is a part of the metric's name; unit
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
SUCCESS = (
    ("held-out, greedy", "validation/success"),
    ("held-out, sampled", "validation/success_sampled"),
    ("training, sampled", "train/success"),
)
CORE = re.compile(
    r"(train|validation|policy|critic|seconds|curriculum|filter|opponent)/.+"
    r"|agent/.+/(rows|groups|zero_variance|singles|reward(/.+)?|advantage_(mean|std)|response_length|read_length"
    r"|invalid|credit/.+)"
)
"""Metrics that runs record themselves; those of plugins (of `metrics`, samplers and workflows) get a chart each."""

SIDE = re.compile(r"(?P<when>train|validation)/side/(?P<side>.+)/wins(?:_(?P<how>sampled))?")
NOTES = (
    "Bands are 95 % intervals. Held-out success: Wilson's interval over the held-out tasks. A metric of training: mean "
    "of the last steps and 1.96 standard errors of that mean, as if steps were independent.",
    "Of three or more runs that differ only in their seed, the mean over runs is drawn, with Student's t interval.",
    "A chart is left out where the run has not recorded its metric, e.g. entropy without an entropy term in the loss.",
)

Line = dict[str, Any]  # {"chart", "unit", "label", "metric", "x", "y"} and, for a band, {"low", "high"}


def columns(records: Sequence[Mapping[str, float]]) -> dict[str, tuple[list[float], list[float]]]:
    """Metric -> (steps, values), in the order of its first occurrence."""
    table: dict[str, tuple[list[float], list[float]]] = {}
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
    for label, name in SUCCESS:
        if name in metrics:
            band = (name, tasks) if name.startswith("validation/") else None
            drawn.append(_line("Team success", "share of episodes", label, name, metrics[name], band))
    for name in metrics:
        if match := SIDE.fullmatch(name):
            held_out = match["when"] == "validation"
            how = "training, sampled" if not held_out else f"held-out, {match['how'] or 'greedy'}"
            band = (name, tasks) if held_out else None
            label = f"{match['side']}, {how}"
            drawn.append(_line("Wins of each side", "share of episodes", label, name, metrics[name], band))
    for title, pattern, unit in CHARTS:
        for name in metrics:
            if match := re.fullmatch(pattern, name):
                chart = title.format(match.groupdict().get("chart", ""))
                drawn.append(_line(chart, unit, match["line"], name, metrics[name]))
    return drawn + [_own(name, points) for name, points in metrics.items() if not CORE.fullmatch(name)]


def _own(name: str, points: tuple[list[float], list[float]]) -> Line:
    """The line of a plugin's metric; a metric of agents has a line for each in one chart."""
    agent = re.fullmatch(r"agent/(?P<line>[^/]+)/(?P<chart>.+)", name)
    chart, label = (agent["chart"], agent["line"]) if agent else (name, name)
    return _line(chart, "recorded by a plugin", label, name, points)


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
    elif metric.startswith("validation/"):
        y, low, high = values, np.full(len(values), np.nan), np.full(len(values), np.nan)
    else:
        y, low, high = _running(values, min(max(WINDOW[0], len(values) // 100), WINDOW[1]))
    shown = _points({"x": x, "y": y.tolist(), "low": low.tolist(), "high": high.tolist()})
    return {"chart": chart, "unit": unit, "label": label, "metric": metric, **shown}


def _running(values: np.ndarray[Any, Any], window: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Mean of the last `window` values and its 95 % interval m -+ 1.96 s / sqrt(n), per step; NaN for one value.

    n is the number of finite values; the mean is NaN where the step's own value is not finite.
    """
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(values, (window - 1, 0), constant_values=np.nan), window)
    finite = np.isfinite(windows)
    n = finite.sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean = np.where(finite, windows, 0.0).sum(axis=1) / n
        squares = np.where(finite, windows - mean[:, None], 0.0) ** 2
        error = 1.96 * np.sqrt(squares.sum(axis=1) / n / np.where(n > 1, n - 1, np.nan))
    mean = np.where(np.isfinite(values), mean, np.nan)
    return mean, mean - error, mean + error


def _points(series: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """At most `POINTS` points with five digits; NaN and infinity are gaps.

    Of more points, the first one and of each bucket of neighbours: the smallest and largest `y`, the first one that is
    not finite, and the last one, so that neither a spike nor a gap is lost.
    """
    y = np.asarray(series["y"], dtype=float)
    kept = range(len(y)) if len(y) <= POINTS else sorted({0, *_extremes(y, (POINTS - 1) // 4)})
    return {name: [digits(values[at]) for at in kept] for name, values in series.items()}


def _extremes(y: np.ndarray[Any, Any], buckets: int) -> Iterator[int]:
    for bucket in np.array_split(np.arange(len(y)), buckets):
        finite = bucket[np.isfinite(y[bucket])]
        if finite.size:
            yield from (int(finite[np.argmin(y[finite])]), int(finite[np.argmax(y[finite])]))
        if finite.size < bucket.size:
            yield int(bucket[~np.isfinite(y[bucket])][0])
        yield int(bucket[-1])


def digits(value: float) -> float | None:
    """A number of the page, with five digits; None for NaN and infinity."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
