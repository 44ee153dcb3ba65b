"""Metrics of a training step: of the team and of each agent, however policies are shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, RowTable, agent_statistics
from marl_verl.algo.algorithms import Metric
from marl_verl.tasks.sides import draws, side_statistics

if TYPE_CHECKING:
    from marl_verl.backend.report import Report


def side_metrics(outcomes: Sequence[Mapping[str, float]], prefix: str, suffix: str = "") -> dict[str, float]:
    """Of each side: its mean outcome and the share of episodes that it won; and the share of draws, which none did.

    `outcomes`: per episode, side -> its score; none if the task set does not score sides.
    """
    if not outcomes:
        return {}
    values = {f"{prefix}draws{suffix}": draws(outcomes)}
    for side, statistics in side_statistics(outcomes).items():
        values |= {f"{prefix}side/{side}/{name}{suffix}": value for name, value in statistics.items()}
    return values


def means(rows: Sequence[Mapping[str, float]], prefix: str, suffix: str = "") -> dict[str, float]:
    """The mean of each name over all rows; a row without it counts as 0."""
    names = sorted({name for row in rows for name in row})
    return {f"{prefix}{name}{suffix}": float(np.mean([row.get(name, 0.0) for row in rows])) for name in names}


def mean_read(reports: Sequence[Report]) -> dict[str, float]:
    """Agent -> mean tokens that an act of it reads from other agents (`episode.communication`)."""
    lengths: dict[str, list[float]] = {}
    for agent, tokens in (turn for report in reports for turn in report.read):
        lengths.setdefault(agent, []).append(tokens)
    return {agent: float(np.mean(tokens)) for agent, tokens in lengths.items()}


def by_set(reports: Sequence[Report]) -> dict[str, list[Report]]:
    """Public set -> the reports of its tasks, in the order of the first ones; {} for tasks that name none."""
    sets: dict[str, list[Report]] = {}
    for report in reports:
        if report.set is not None:
            sets.setdefault(report.set, []).append(report)
    return sets


def team_metrics(
    table: RowTable, result: AdvantageResult, reports: list[Report], metrics: Sequence[Metric] = ()
) -> dict[str, float]:
    """Team success of the sampled episodes, outcomes of sides, measures of answers, failures, each agent's statistics,
    and the algorithm's own metrics."""
    successes = [success for report in reports for success in report.successes]
    scores = [score for report in reports for score in report.scores]
    failures = [failure for report in reports for failure in report.failures]
    values: dict[str, float] = {
        "train/success": float(np.mean(successes)) if successes else 0.0,
        **({"train/score": float(np.mean(scores))} if scores else {}),
        "train/episodes": float(len(successes)),
        "train/attempts": float(sum(report.attempts for report in reports)),
        "train/failed_episodes": float(len(failures)),
    }
    values.update(side_metrics([outcome for report in reports for outcome in report.outcomes], "train/"))
    values.update(means([row for report in reports for row in report.measures], "train/answer/"))
    extra: Counter[str] = Counter()  # sampled tokens that are in no row
    for report in reports:
        extra.update(report.extra_tokens)
    values.update({f"train/extra_tokens/{purpose}": float(count) for purpose, count in extra.items()})
    values["train/tokens"] = float(table.length[~table.padding].sum()) + extra.total()
    reasons = Counter(failure.reason for failure in failures)
    values.update({f"train/failed/{reason}": float(count) for reason, count in sorted(reasons.items())})
    for agent, statistics in agent_statistics(table, result).items():
        values.update({f"agent/{agent}/{name}": value for name, value in statistics.items()})
    values.update({f"agent/{agent}/read_length": tokens for agent, tokens in mean_read(reports).items()})
    for name in sorted({name for report in reports for name in report.metrics}):
        values[name] = float(np.mean([report.metrics[name] for report in reports if name in report.metrics]))
    for metric in metrics:
        values.update({name: float(value) for name, value in metric.of_rows(table, result).items()})
    return values
