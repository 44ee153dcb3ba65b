"""What a step tells about the team and each agent, under any sharing of policies."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from marl_verl.advantage import Advantages, RowTable, agent_statistics
from marl_verl.algorithms import Metric
from marl_verl.rollout.worker import Report


class Stopwatch:
    """Seconds of each named part, added into `times`."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self.times[name] = self.times.get(name, 0.0) + time.monotonic() - begun


def team_metrics(
    table: RowTable, result: Advantages, reports: list[Report], metrics: Sequence[Metric] = ()
) -> dict[str, float]:
    """Team success of the sampled episodes, failures, and each agent's rewards, advantages, lengths and groups.

    Args:
        metrics: the algorithm's own, of the rows; what those of the samples say is in the reports.
    """
    successes = [success for report in reports for success in report.successes]
    failures = [failure for report in reports for failure in report.failures]
    values: dict[str, float] = {
        "train/success": float(np.mean(successes)) if successes else 0.0,
        "train/episodes": float(len(successes)),
        "train/attempts": float(sum(report.attempts for report in reports)),
        "train/failed_episodes": float(len(failures)),
    }
    extra = {what: 0 for report in reports for what in report.extra_tokens}
    for what in extra:  # sampled, and no row
        extra[what] = sum(report.extra_tokens.get(what, 0) for report in reports)
        values[f"train/extra_tokens/{what}"] = float(extra[what])
    values["train/tokens"] = float(table.length[~table.padding].sum()) + sum(extra.values())
    for reason in sorted({failure.reason for failure in failures}):
        values[f"train/failed/{reason}"] = float(sum(failure.reason == reason for failure in failures))
    for agent, statistics in agent_statistics(table, result).items():
        values.update({f"agent/{agent}/{name}": value for name, value in statistics.items()})
    for name in sorted({name for report in reports for name in report.metrics}):
        values[name] = float(np.mean([report.metrics[name] for report in reports if name in report.metrics]))
    for metric in metrics:
        values.update({name: float(value) for name, value in metric.of_rows(table, result).items()})
    return values
