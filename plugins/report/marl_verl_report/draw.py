"""One picture of a comparison: the learning curve of each arm, and the difference of each pair of runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl_report.decide import Estimate, estimate

COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


def figure(width: float, height: float, columns: int) -> tuple[Any, Any]:
    """(figure, its axes); texts of an SVG file are texts, and equal figures are equal files."""
    import matplotlib  # here: `--help` is fast
    from matplotlib.figure import Figure

    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "marl-verl", "font.size": 9})
    drawn = Figure(figsize=(width, height))
    return drawn, drawn.subplots(1, columns, squeeze=False)[0]


def save(drawn: Any, path: Path) -> None:
    drawn.tight_layout()
    drawn.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def curves(axes: Any, arms: Mapping[str, Sequence[Mapping[float, float]]], label: str) -> None:
    """The mean over runs (step -> value) of each arm at the steps that all have, with its 95 % interval as a band."""
    for (name, runs), color in zip(arms.items(), COLORS, strict=False):
        steps = sorted(set.intersection(*(set(run) for run in runs)))
        points = [estimate([run[step] for run in runs]) for step in steps]
        axes.plot(steps, [point.mean for point in points], marker="o", markersize=3, color=color, label=name)
        if len(runs) > 1:
            low, high = [point.low for point in points], [point.high for point in points]
            axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.set(xlabel="training step", ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)


def differences(axes: Any, values: Sequence[float], effect: Estimate, label: str, margin: float | None = None) -> None:
    """The difference of each pair, sorted, with their mean and its interval; a gray band from -margin to margin."""
    axes.axvline(0, color="black", linewidth=0.8)
    if margin is not None:
        axes.axvspan(-margin, margin, color="gray", alpha=0.15, linewidth=0)
    axes.plot(sorted(values), range(1, len(values) + 1), "o", markersize=3, color="gray")
    if effect.n > 1:
        axes.errorbar(
            [effect.mean], [-1], xerr=[[effect.mean - effect.low], [effect.high - effect.mean]], fmt="D", capsize=3
        )
    axes.set(xlabel=label, ylabel="pair of runs, sorted", yticks=[])
    axes.grid(alpha=0.3, axis="x")
