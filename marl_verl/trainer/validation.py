"""Validation of the whole team on held-out tasks: greedy decoding, and sampling as in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from verl.utils import tensordict_utils as tu

from marl_verl.backend.verl.rollout.manager import TeamRolloutManager
from marl_verl.backend.verl.rollout.worker import Report
from marl_verl.trainer.metrics import by_set, mean_read, means, side_metrics


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
    tasks: Iterable[dict[str, Any]],
    context: TeamRolloutManager,
    step: int,
    sampled: bool,
    keep: int,
    at_once: int | None = None,
) -> Iterator[list[Report]]:
    """Run every held-out task, greedily or with the sampler of `marl.validation`. Rows are not written.

    Args:
        tasks: batches of a data loader.
        step: part of uids and seeds.
        keep: number of first tasks whose reports contain their episodes' lines.
        at_once: maximum number of tasks in flight, whose reports are yielded together; None for a whole batch.
    """
    first = 0
    for rows in _parts(tasks, at_once):
        count, mode = len(rows["raw_prompt"]), "v" if sampled else "g"
        rows["uid"] = np.array([f"{mode}{step}t{first + i:05d}" for i in range(count)], dtype=object)
        rows["sampled"] = np.array([sampled] * count, dtype=object)
        rows["keep"] = np.array([first + i < keep for i in range(count)], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_data(batch, "validate", True)
        context.generate_sequences(batch)
        yield [report for done in context.collect() for report in done.reports]
        first += count


def _parts(batches: Iterable[dict[str, Any]], size: int | None) -> Iterator[dict[str, Any]]:
    """The batches of a data loader, none with more than `size` tasks."""
    for rows in batches:
        count = len(rows["raw_prompt"])
        for start in range(0, count, size or count):
            yield {name: values[start : start + (size or count)] for name, values in rows.items()}
