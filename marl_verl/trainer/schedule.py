"""What a schedule is, and what it may use of the trainer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, Protocol

from transfer_queue import KVBatchMeta

from marl_verl.advantage import Advantages, RowTable
from marl_verl.algorithms import Algorithm
from marl_verl.rollout.dispatch import Task
from marl_verl.rollout.worker import Report
from marl_verl.trainer.policies import Policies


class Training(Protocol):
    """The side of the trainer that a schedule uses.

    Attributes:
        global_steps: the step under way, from 1.
        agent_loop_manager: the rollout manager.
        algorithm: computes the advantages.
        components: the reward components that the run makes.
    """

    global_steps: int
    total_training_steps: int
    agent_loop_manager: Any
    algorithm: Algorithm
    components: frozenset[str]
    policies: Policies

    def phase(self, name: str, /) -> AbstractContextManager[None]:
        """What the run is doing while the context lasts, for error messages."""

    def next_tasks(self) -> list[Task]:
        """The next batch of the data."""

    def sample(self) -> KVBatchMeta:
        """Sample a batch of tasks and wait for it; its rows, in key order."""

    def store_reports(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks. MarlError if too many failed."""

    def store_rows(self, table: RowTable, result: Advantages) -> dict[str, float]:
        """Store how a step's advantages were computed; the step's metrics of the team and its agents."""


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
