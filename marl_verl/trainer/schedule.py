"""What a schedule is, what it may use of the trainer, and the schedule that takes one thing after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol

from transfer_queue import KVBatchMeta

from marl_verl.advantage import AdvantageResult, RowTable
from marl_verl.algorithms import Algorithm
from marl_verl.rollout.rows import identity
from marl_verl.rollout.worker import Report
from marl_verl.threads import in_thread
from marl_verl.trainer.batches import with_padding
from marl_verl.trainer.metrics import timed
from marl_verl.trainer.policies import Policies

Task = dict[str, Any]
"""The columns of `TaskDataset`, with `uid`, `keep` (whether its episodes are stored) and `batch` (which one of the
data's it is in, from 1)."""


class Training(Protocol):
    """The side of the trainer that a schedule uses."""

    global_steps: int  # the step under way, from 1
    total_training_steps: int
    agent_loop_manager: Any
    algorithm: Algorithm
    components: frozenset[str]  # of the reward, those that the run makes
    policies: Policies

    # what the run is doing while the context lasts, for error messages
    def phase(self, name: str, /) -> AbstractContextManager[None]: ...
    # the next batch of the data
    def next_tasks(self) -> list[Task]: ...
    # sample a batch of tasks and wait for it; its rows, in key order
    def sample(self) -> KVBatchMeta: ...
    # store the episodes of a step's tasks; MarlError if too many failed
    def store_reports(self, reports: list[Report]) -> None: ...
    # store how a step's advantages were computed; the step's metrics of the team and its agents
    def store_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]: ...


class Schedule(ABC):
    """When the run samples and when it learns."""

    @abstractmethod
    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Take one step of the run, add its metrics and seconds; the rows that are done with."""

    def on_step_end(self, timing_raw: dict[str, float]) -> None:
        """Called after the checkpoint of a step, before its validation."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Policy -> the version of its weights, which its servers report with every action."""

    def settle(self) -> None:
        """Wait until no update and no sync is under way. Called before a checkpoint, and before a validation."""

    def state(self) -> dict[str, Any] | None:
        """What a checkpoint has to keep from one step to the next."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` gave, if anything."""


class Synchronous(Schedule):
    """Every row is used in the step that sampled it, by the weights that sampled it; all policies update at once."""

    def __init__(self, training: Training) -> None:
        self.training, self.policies = training, training.policies

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        training = self.training
        with timed(timing_raw, "gen"), training.phase("sampling"):
            batch = training.sample()
        with timed(timing_raw, "advantage"), training.phase("computing advantages"):
            table, result = self.put_advantages(batch)
            metrics.update(training.store_rows(table, result))
        with timed(timing_raw, "update"), training.phase("updating"):
            critics = in_thread("update-critics", lambda: self.policies.critics.update(batch, result.target))
            updated = self.policies.update(batch)
            metrics.update(critics.result())
        for name, (part, values) in updated.items():
            metrics.update({f"policy/{name}/{key}": value for key, value in values.items()})
            batch = with_padding(batch, part)
        return batch

    def put_advantages(self, batch: KVBatchMeta) -> tuple[RowTable, AdvantageResult]:
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
        with timed(timing_raw, "sync"), self.training.phase("syncing weights"):
            self.policies.sync_weights(self.versions())

    def versions(self) -> dict[str, int]:
        """The step: all policies learn in it."""
        return dict.fromkeys(self.policies.runtimes, int(self.training.global_steps))
