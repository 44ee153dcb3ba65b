"""Validation of the whole team on held-out tasks: greedy decoding, and sampling as in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from marl_verl.backend.report import Report
from marl_verl.trainer.metrics import by_set, mean_read, means, side_metrics

if TYPE_CHECKING:
    from marl_verl.backend.protocol import Rollouts


def validation_metrics(greedy: Sequence[Report], sampled: Sequence[Report]) -> dict[str, float]:
    """Team success on the held-out tasks (0 if all episodes failed), also of each public set, outcomes of sides,
    measures of answers, and each agent's rewards in the greedy pass."""
    values = {
        "validation/success": float(np.mean([_success(report) for report in greedy])),
        "validation/success_sampled": float(np.mean([_success(report) for report in sampled])),
        "validation/success_any": float(np.mean([any(report.successes) for report in sampled])),
        "validation/failed_episodes": float(sum(len(report.failures) for report in (*greedy, *sampled))),
    }
    for suffix, reports in (("", greedy), ("_sampled", sampled)):
        values |= side_metrics([outcome for report in reports for outcome in report.outcomes], "validation/", suffix)
        values |= means([row for report in reports for row in report.measures or [{}]], "validation/answer/", suffix)
        values |= {
            f"validation/set/{name}/success{suffix}": float(np.mean([_success(report) for report in own]))
            for name, own in by_set(reports).items()
        }
    values |= {f"validation/agent/{agent}/read_length": tokens for agent, tokens in mean_read(greedy).items()}
    columns: dict[str, list[float]] = {}
    for report in greedy:
        for episode in report.rewards:
            for agent, components in episode.items():
                for component, value in components.items():
                    columns.setdefault(f"validation/agent/{agent}/{component}", []).append(value)
    return {**values, **{name: float(np.mean(column)) for name, column in columns.items()}}


def _success(report: Report) -> float:
    """Share of a task's episodes that succeeded; 0 without episodes. Samplers return one chosen episode, or k."""
    return float(np.mean(report.successes)) if report.successes else 0.0


def play(
    tasks: Sequence[str], rollouts: Rollouts, step: int, sampled: bool, keep: int, at_once: int
) -> Iterator[list[Report]]:
    """Run every held-out task, greedily or with the sampler of `marl.validation`. Rows are not written.

    Args:
        tasks: each as JSON.
        step: part of uids and seeds.
        keep: number of first tasks whose reports contain their episodes' lines.
        at_once: maximum number of tasks in flight, whose reports are yielded together.
    """
    mode = "v" if sampled else "g"
    rows = [
        {"task": task, "uid": f"{mode}{step}t{number:05d}", "sampled": sampled, "keep": number < keep}
        for number, task in enumerate(tasks)
    ]
    for first in range(0, len(rows), at_once):
        done = rollouts.sample(rows[first : first + at_once], step, validate=True)
        yield [report for share in done for report in share.reports]
