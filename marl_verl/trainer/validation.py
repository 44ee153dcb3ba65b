"""Held-out tasks, played by the whole team: greedily, and sampled as in training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from verl.utils import tensordict_utils as tu

if TYPE_CHECKING:
    from marl_verl.rollout.worker import Report
    from marl_verl.trainer.team_trainer import TeamTrainer


@dataclass
class Validation:
    """Team success on the held-out tasks at one step.

    Attributes:
        greedy, sampled: share of successes a task (0 or 1 with one episode); a task whose episodes failed counts as 0.
        any: whether one of the sampled episodes succeeded (pass@k of k), a task.
        agents: agent -> component -> mean over greedy episodes.
        failed: episodes that failed, of both passes.
    """

    step: int
    greedy: list[float]
    sampled: list[float]
    any: list[float]
    agents: dict[str, dict[str, float]]
    failed: int

    @property
    def tasks(self) -> int:
        return len(self.greedy)

    def metrics(self) -> dict[str, float]:
        """What goes to metrics.jsonl."""
        values = {
            "validation/success": float(np.mean(self.greedy)),
            "validation/success_sampled": float(np.mean(self.sampled)),
            "validation/success_any": float(np.mean(self.any)),
            "validation/failed_episodes": float(self.failed),
        }
        for agent, components in self.agents.items():
            values.update({f"validation/agent/{agent}/{name}": value for name, value in components.items()})
        return values


def validate(trainer: TeamTrainer) -> Validation:
    """Play every held-out task twice: greedily, then with the sampling of training. Rows are not written."""
    keep = int(trainer.config.marl.rollout.keep_episodes)
    greedy = list(chain.from_iterable(play(trainer, sampled=False, keep=keep)))
    sampled = list(chain.from_iterable(play(trainer, sampled=True, keep=0)))
    lines = [line for report in greedy + sampled for line in report.lines]
    if lines:
        trainer.run_dir.episodes(trainer.global_steps, [trainer.journal_header("test"), *lines])
    trainer.check_failures(greedy + sampled)
    return Validation(
        step=trainer.global_steps,
        greedy=[_success(report) for report in greedy],
        sampled=[_success(report) for report in sampled],
        any=[float(any(report.successes)) for report in sampled],
        agents=_agents(greedy),
        failed=sum(len(report.failures) for report in greedy + sampled),
    )


def _success(report: Report) -> float:
    """Share of a task's episodes that succeeded: of the one that a sampler chose, or avg@k of k; 0 without any."""
    return float(np.mean(report.successes)) if report.successes else 0.0


def _agents(reports: list[Report]) -> dict[str, dict[str, float]]:
    columns: dict[str, dict[str, list[float]]] = {}
    for report in reports:
        for episode in report.rewards:
            for agent, components in episode.items():
                for component, value in components.items():
                    columns.setdefault(agent, {}).setdefault(component, []).append(value)
    return {
        agent: {component: float(np.mean(values)) for component, values in components.items()}
        for agent, components in columns.items()
    }


def play(trainer: TeamTrainer, sampled: bool, keep: int, at_once: int | None = None) -> Iterator[list[Report]]:
    """Play every held-out task, greedily or sampled as `marl.validation` says. Rows are not written.

    Args:
        keep: tasks whose episodes come as lines of JSON with their report, the first ones.
        at_once: tasks that are under way at the same time; None for as many as the data loader gives.

    Yields:
        The reports of tasks that were played at the same time, in the order of the tasks.
    """
    first = 0
    for rows in _parts(trainer.val_dataloader, at_once):
        count = len(rows["raw_prompt"])
        mode = "v" if sampled else "g"
        rows["uid"] = np.array([f"{mode}{trainer.global_steps}t{first + i:05d}" for i in range(count)], dtype=object)
        rows["sampled"] = np.array([sampled] * count, dtype=object)
        rows["keep"] = np.array([first + i < keep for i in range(count)], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", trainer.global_steps)
        tu.assign_non_tensor_data(batch, "validate", True)
        trainer.agent_loop_manager.generate_sequences(batch)
        yield trainer.agent_loop_manager.collect()
        first += count


def _parts(batches: Iterable[dict[str, Any]], size: int | None) -> Iterator[dict[str, Any]]:
    """The batches of a data loader, none with more than `size` tasks."""
    for rows in batches:
        count = len(rows["raw_prompt"])
        for start in range(0, count, size or count):
            yield {name: values[start : start + (size or count)] for name, values in rows.items()}
