"""The schedule interface, the part of the trainer that schedules use, and the synchronous schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from transfer_queue import KVBatchMeta

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.backend.verl.batches import part_of, with_padding
from marl_verl.backend.verl.memory import AdvantageMemory
from marl_verl.backend.verl.rollout.worker import Report
from marl_verl.events import timed
from marl_verl.threads import in_thread
from marl_verl.trainer.filtering import Signal
from marl_verl.trainer.policies import Policies

Task = dict[str, Any]
"""The columns of `TaskDataset`, `uid`, `keep` (whether to store its episodes) and `batch` (number of its data batch,
from 1)."""


class Training(Protocol):
    """The side of the trainer that a schedule uses."""

    global_steps: int  # the current step, from 1
    total_training_steps: int
    agent_loop_manager: Any
    algorithm: Algorithm
    memory: AdvantageMemory  # of earlier steps
    policies: Policies

    # names the run's activity during the context, for error messages
    def phase(self, name: str, /) -> AbstractContextManager[None]: ...
    # the next batch of the data
    def next_tasks(self) -> list[Task]: ...
    # sample a batch of tasks and wait; returns its rows in key order
    def sample(self) -> tuple[KVBatchMeta, RowTable]: ...
    # store the episodes of a step's tasks; MarlError if too many failed
    def store_reports(self, reports: list[Report]) -> None: ...
    # store how a step's advantages were computed; returns the step's metrics of team and agents
    def store_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]: ...
    # which rows to train on; None without a filter: all
    def signal(self, table: RowTable, result: AdvantageResult) -> Signal | None: ...


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
    """Synchronous schedule: each row is used in the step that sampled it (on-policy); policies update concurrently."""

    def __init__(self, training: Training) -> None:
        self.training, self.policies = training, training.policies

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        training = self.training
        with timed(timing_raw, "gen"), training.phase("sampling"):
            batch, table = training.sample()
        with timed(timing_raw, "advantage"), training.phase("computing advantages"):
            table, result = self.put_advantages(batch, table)
            metrics.update(training.store_rows(table, result))
            signal, learnt = training.signal(table, result), batch
            if signal is not None:
                metrics.update(signal.metrics())
                learnt = part_of(batch, signal.rows)
        with timed(timing_raw, "update"), training.phase("updating"):
            critics = in_thread("update-critics", lambda: self.policies.critics.update(batch, result.target))
            updated = self.policies.update(learnt)
            metrics.update(critics.result())
        for name, (part, values) in updated.items():
            metrics.update({f"policy/{name}/{key}": value for key, value in values.items()})
            batch = with_padding(batch, part)
        return batch

    def put_advantages(self, batch: KVBatchMeta, table: RowTable) -> tuple[RowTable, AdvantageResult]:
        """Compute the advantages of all rows of the team together and write them to TransferQueue."""
        if (values := self.policies.critics.values(batch)) is not None:
            table = replace(table, values=values)
        table = self.training.memory.recall(self.training.algorithm.credited(table))
        result = self.training.algorithm.compute(table)
        self.policies.put_advantages(batch, result)
        return table, result

    def on_step_end(self, timing_raw: dict[str, float]) -> None:
        """Sync weights to the servers. After the checkpoint, which may need the memory that awake servers use."""
        with timed(timing_raw, "sync"), self.training.phase("syncing weights"):
            self.policies.sync_weights(self.versions())

    def versions(self) -> dict[str, int]:
        """The current step as version of every policy."""
        return dict.fromkeys(self.policies.runtimes, int(self.training.global_steps))
