"""When a run samples and when it learns: the interface of schedules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from marl_verl.backend.protocol import Rows
from marl_verl.config.schedule import settings_of


class Schedule(ABC):
    """When the run samples and when it learns."""

    @abstractmethod
    def step(self, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Run one step, and add its seconds. Returns its metrics, and the keys of the rows that are used up."""

    def sync(self, seconds: dict[str, float]) -> None:
        """Act with the new weights; called after a step's checkpoint and before its validation."""

    @abstractmethod
    def versions(self) -> dict[str, int]:
        """Policy -> the version of its weights, which every action reports."""

    def settle(self) -> None:
        """Wait until no update or weight sync is running. Called before a checkpoint and before a validation."""

    def state(self) -> dict[str, Any] | None:
        """The state that a checkpoint stores; None for nothing."""
        return None

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from a `state`; None if the checkpoint has none."""


def in_turn(config: Any, step: int, rows: Rows) -> Rows:
    """The rows of those policies whose turn a step is (`marl.schedule.turns`)."""
    settings = settings_of(config)
    if not settings.turns:
        return rows
    turn = settings.turns[(step - 1) // settings.turn_steps % len(settings.turns)]
    return rows.part([row for row, tag in enumerate(rows.tags) if tag["policy"] in turn])
