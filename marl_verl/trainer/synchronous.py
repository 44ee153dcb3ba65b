"""Steps one after the other: sample with all policies, one advantage over all rows, update every policy at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from transfer_queue import KVBatchMeta

from marl_verl.parts import metrics_of
from marl_verl.trainer import metrics as team_metrics

if TYPE_CHECKING:
    from marl_verl.trainer.team_trainer import TeamTrainer


class Schedule(Protocol):
    """When is sampled, when is learnt."""

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """One step of the run; returns the rows that are done with."""
        ...

    def on_step_end(self) -> None:
        """After the checkpoint of a step, before its validation."""
        ...

    def version(self, policy: str) -> int:
        """Of a policy's weights, as its servers are to say with every action."""
        ...

    def settle(self) -> None:
        """Come to rest: no update and no sync is under way. Before a checkpoint, and before a validation."""
        ...

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint has to keep of it."""
        ...

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` gave."""
        ...


class Synchronous:
    """Every row is used in the step that sampled it, by the weights that sampled it."""

    def __init__(self, trainer: TeamTrainer) -> None:
        self.trainer = trainer

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Sample, one advantage over the team, update every policy."""
        trainer, times = self.trainer, team_metrics.Stopwatch(timing_raw)
        with times("gen"), trainer.phase("sampling"):
            batch = trainer.sample()
        with times("advantage"), trainer.phase("computing advantages"):
            table, result = trainer.put_advantages(batch)
        with times("update"), trainer.phase("updating"), ThreadPoolExecutor(max_workers=1) as threads:
            learning = threads.submit(trainer.update_critics, batch, result)
            updated = trainer.update(batch)
            metrics.update(learning.result())
        credited = trainer.algorithm.credited(table)
        metrics.update(team_metrics.team_metrics(credited, result, trainer.reports, metrics_of(trainer.algorithm)))
        for name, (part, values) in updated.items():
            metrics.update({f"policy/{name}/{key}": value for key, value in values.items()})
            batch = with_padding(batch, part)
        return batch

    def on_step_end(self) -> None:
        """Send the new weights to the servers: after the checkpoint, which may need the memory that they take."""
        trainer = self.trainer
        with team_metrics.Stopwatch(trainer.timing_raw)("sync"), trainer.phase("syncing weights"):
            trainer.at_once(trainer.policies.values(), lambda runtime: runtime.ready(trainer.global_steps))

    def version(self, policy: str) -> int:
        """The step: all policies learn in it."""
        return int(self.trainer.global_steps)

    def settle(self) -> None:
        return None

    def state(self) -> dict[str, Any] | None:
        """Nothing is left over from one step to the next."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None:
        return None


def with_padding(batch: KVBatchMeta, part: KVBatchMeta) -> KVBatchMeta:
    """The batch with the padding rows that a policy's part was given: they have to leave TransferQueue too."""
    known = set(batch.keys)
    padding = [row for row, key in enumerate(part.keys) if key not in known]
    return KVBatchMeta(
        partition_id=batch.partition_id,
        keys=[*batch.keys, *(part.keys[row] for row in padding)],
        tags=[*batch.tags, *(part.tags[row] for row in padding)],
    )
