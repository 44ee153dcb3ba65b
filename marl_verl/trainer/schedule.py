"""When a run samples and when it learns: the interface of schedules, and the synchronous schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from transfer_queue import KVBatchMeta

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.advantage.concat import concat
from marl_verl.backend.verl.batches import PARTITION, part_of, put_advantages
from marl_verl.backend.verl.rollout.worker import Done
from marl_verl.events import timed
from marl_verl.threads import in_thread


class Schedule(ABC):
    """When the run samples and when it learns."""

    @abstractmethod
    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Run one step and add its metrics and seconds. Returns the rows to remove from TransferQueue."""

    def on_step_end(self, timing_raw: dict[str, float]) -> None:
        """Called after a step's checkpoint and before its validation."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Policy -> the version of its weights, which its servers report with every action."""

    def settle(self) -> None:
        """Wait until no update or weight sync is running. Called before a checkpoint and before a validation."""

    def state(self) -> dict[str, Any] | None:
        """The state that a checkpoint stores; None for nothing."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from a `state`; None if the checkpoint has none."""


class Synchronous(Schedule):
    """Each row is used in the step that sampled it (on-policy); policies update concurrently.

    `trainer`: the `TeamTrainer`.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.policies = trainer, trainer.policies

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        trainer, policies = self.trainer, self.policies
        with timed(timing_raw, "gen"), trainer.phase("sampling"):
            batch, table = trainer.sample()
        with timed(timing_raw, "advantage"), trainer.phase("computing advantages"):
            table, result = self.put_advantages(batch, table)
            metrics.update(trainer.store_rows(table, result))
            signal, learnt = trainer.signal(table, result), batch
            if signal is not None:
                metrics.update(signal.metrics())
                learnt = part_of(batch, signal.rows)
        with timed(timing_raw, "update"), trainer.phase("updating"):
            critics = in_thread("update-critics", lambda: policies.critics.update(batch, result.target))
            updated = policies.update(learnt)
            metrics.update(critics.result())
        for name, (_, values) in updated.items():
            metrics.update({f"policy/{name}/{key}": value for key, value in values.items()})
        return stored(batch, [part for part, _ in updated.values()], policies.learning)

    def put_advantages(self, batch: KVBatchMeta, table: RowTable) -> tuple[RowTable, AdvantageResult]:
        """Compute the advantages of all rows of the team together and write them to TransferQueue."""
        if (values := self.policies.critics.values(batch)) is not None:
            table = replace(table, values=values)
        table = self.trainer.memory.recall(self.trainer.algorithm.credited(table))
        result = self.trainer.algorithm.compute(table)
        put_advantages(batch, result, self.policies.learning)
        return table, result

    def on_step_end(self, timing_raw: dict[str, float]) -> None:
        """Sync weights to the servers. After the checkpoint, which may need the memory that awake servers use."""
        with timed(timing_raw, "sync"), self.trainer.phase("syncing weights"):
            self.policies.sync_weights(self.versions())

    def versions(self) -> dict[str, int]:
        """The current step as version of every policy."""
        return dict.fromkeys(self.policies.runtimes, int(self.trainer.global_steps))


def in_key_order(done: Sequence[Done]) -> tuple[KVBatchMeta, RowTable]:
    """The rows of finished tasks, and their table, both in key order. MarlError without rows."""
    table = concat([share.table for share in done if share.table is not None])
    tags = {key: tag for share in done for key, tag in zip(share.keys, share.tags, strict=True)}
    keys = table.keys()
    return KVBatchMeta(partition_id=PARTITION, keys=keys, tags=[tags[key] for key in keys]), table


def stored(batch: KVBatchMeta, updated: Sequence[KVBatchMeta], learning: Collection[str]) -> KVBatchMeta:
    """The rows of a step in TransferQueue: those of learning policies, and what updates added (padding, sequences)."""
    rows = {key: tag for key, tag in zip(batch.keys, batch.tags, strict=True) if tag["policy"] in learning}
    for part in updated:
        rows.update(zip(part.keys, part.tags, strict=True))
    return KVBatchMeta(partition_id=batch.partition_id, keys=list(rows), tags=list(rows.values()))
