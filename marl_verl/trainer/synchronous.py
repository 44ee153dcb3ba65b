"""Steps one after the other: sample with all policies, one advantage over all rows, update every policy at once."""

from __future__ import annotations

from typing import Any

from transfer_queue import KVBatchMeta

from marl_verl.advantage import Advantages, RowTable
from marl_verl.rollout.rows import identity
from marl_verl.threads import in_thread
from marl_verl.trainer.batches import with_padding
from marl_verl.trainer.metrics import Stopwatch
from marl_verl.trainer.schedule import Schedule, Training


class Synchronous(Schedule):
    """Every row is used in the step that sampled it, by the weights that sampled it."""

    def __init__(self, training: Training) -> None:
        self.training, self.policies = training, training.policies

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Sample, compute one advantage over the team, update every policy and critic."""
        training, times = self.training, Stopwatch(timing_raw)
        with times("gen"), training.phase("sampling"):
            batch = training.sample()
        with times("advantage"), training.phase("computing advantages"):
            table, result = self.put_advantages(batch)
            metrics.update(training.store_rows(table, result))
        with times("update"), training.phase("updating"):
            critics = in_thread("update-critics", lambda: self.policies.critics.update(batch, result.target))
            updated = self.policies.update(batch)
            metrics.update(critics.result())
        for name, (part, values) in updated.items():
            metrics.update({f"policy/{name}/{key}": value for key, value in values.items()})
            batch = with_padding(batch, part)
        return batch

    def put_advantages(self, batch: KVBatchMeta) -> tuple[RowTable, Advantages]:
        """Compute the advantage of every row over the whole team, and write it to TransferQueue."""
        rows = [identity(tag) for tag in batch.tags]
        for row, value in zip(rows, self.policies.critics.values(batch) or [], strict=False):
            row["value"] = value
        table = RowTable.from_rows(rows, self.training.components)
        result = self.training.algorithm.compute(table)
        self.policies.put_advantages(batch, result.advantage)
        return table, result

    def on_step_end(self, timing_raw: dict[str, float]) -> None:
        """Send the new weights to the servers: after the checkpoint, which may need the memory that they take."""
        with Stopwatch(timing_raw)("sync"), self.training.phase("syncing weights"):
            self.policies.sync_weights(self.versions())

    def versions(self) -> dict[str, int]:
        """The step: all policies learn in it."""
        return dict.fromkeys(self.policies.runtimes, int(self.training.global_steps))
