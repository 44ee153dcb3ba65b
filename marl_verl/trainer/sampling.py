"""Sampling of a step: its tasks in rounds for past versions, and further tasks for those that teach nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.concat import concat
from marl_verl.backend.protocol import Done, Rows, TaskRow
from marl_verl.backend.report import Report
from marl_verl.config.task_choice import filter_of
from marl_verl.trainer.filtering import Signal


class Sampling:
    """The sampling of a synchronous step of a `Trainer`."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.filter = trainer, filter_of(trainer.config)
        self.reports: list[Report] = []  # of the step
        self.refills = 0

    def sample(self) -> tuple[Rows, RowTable]:
        """Sample the tasks of a step and wait. Returns its rows in key order.

        With a filter, further tasks are sampled for those that teach nothing, up to `refill` times.
        """
        trainer, data = self.trainer, self.trainer.data
        self.reports, data.drawn, self.refills = [], [], 0
        done = self._sample(data.size)
        for _ in range(self.filter.refill if self.filter is not None else 0):
            missing = min(data.size - self._useful_tasks(done), len(data.train) - len(data.drawn))
            if not missing:
                break
            self.refills += 1
            done += self._sample(missing)
        for part in (data.curriculum, trainer.past):
            if part is not None:
                part.record(self.reports)
        # where servers and training share a GPU, the servers free its memory until the weights are synced
        trainer.policies.sleep()
        return in_key_order(done)

    def _sample(self, count: int) -> list[Done]:
        """Sample further tasks of the step and wait. With past versions, in a round for each snapshot."""
        trainer, done = self.trainer, list[Done]()
        tasks = trainer.data.draw(trainer.step, count)
        rounds: list[tuple[Mapping[str, int], Sequence[TaskRow]]] = [({}, tasks)]
        if trainer.past is not None:
            met = trainer.past.rounds([task["uid"] for task in tasks])
            rounds = [(snapshots, [tasks[place] for place in positions]) for snapshots, positions in met]
        for snapshots, chosen in rounds:
            trainer.use_snapshots(snapshots)
            done += trainer.rollouts.sample(chosen, trainer.step)
        self.keep([*self.reports, *(report for share in done for report in share.reports)])
        return done

    def keep(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks. MarlError if too many failed."""
        self.reports = reports
        self.trainer.records.journals(self.trainer.step, reports)

    def _useful_tasks(self, done: list[Done]) -> int:
        """Number of tasks of the step with something to learn from; a task without rows has failed."""
        if not any(share.rows.keys for share in done):
            return 0
        trainer = self.trainer
        table = trainer.memory.recall(trainer.algorithm.credited(in_key_order(done)[1]), keep=False)
        signal = self.signal(table, trainer.algorithm.compute(table))
        return len(signal.tasks) if signal is not None else 0

    def signal(self, table: RowTable, result: AdvantageResult) -> Signal | None:
        """The rows to train on; None without a filter: all."""
        if self.filter is None:
            return None
        return Signal.of(table, result, self.trainer.policies.learning, self.filter.above, self.filter.below)

    def metrics(self) -> dict[str, float]:
        """Of the filter, the curriculum and past versions."""
        values: dict[str, float] = {}
        if self.filter is not None and self.trainer.data.drawn:
            drawn = len(self.trainer.data.drawn)
            values |= {"filter/refill_rounds": float(self.refills), "filter/tasks": float(drawn)}
        for part in (self.trainer.data.curriculum, self.trainer.past):
            values |= part.metrics() if part is not None else {}
        return values


def in_key_order(done: Sequence[Done]) -> tuple[Rows, RowTable]:
    """The rows of finished tasks, and their table, both in key order. MarlError without rows."""
    table = concat([share.table for share in done if share.table is not None])
    tags = {key: tag for share in done for key, tag in zip(share.rows.keys, share.rows.tags, strict=True)}
    keys = table.keys()
    return Rows(keys, [tags[key] for key in keys]), table
