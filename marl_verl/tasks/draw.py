"""Tasks drawn at random: as many different ones as are wanted, each in one split whatever the seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import ClassVar

from marl_verl.errors import MarlError, unknown
from marl_verl.tasks.base import Split, Task, TaskSet

TRIES = 10_000  # draws in a row without a new task, after which there seem to be no more


def distinct(draw: Callable[[], Task | None], count: int, split: Split, name: str) -> list[Task]:
    """`count` different tasks, in the order drawn.

    Args:
        draw: one random task, or None where the draw is no task of this split.
        name: of the task set, to begin the error with.

    Raises:
        MarlError: the split seems not to have that many.
    """
    tasks: dict[str, Task] = {}
    misses = 0
    while len(tasks) < count:
        task = draw()
        misses += 1
        if task is not None and task.id not in tasks:
            tasks[task.id], misses = task, 0
        elif misses == TRIES:
            raise MarlError(f"{name}: found only {len(tasks)} of {count} different {split} tasks")
    return list(tasks.values())


def held_out(text: str, one_in: int) -> bool:
    """Whether what a text describes is in split "test": one in `one_in` is, by a hash that no seed changes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % one_in == 0


class DrawnTasks(TaskSet):
    """A bundled task set: tasks are drawn at random, and each of two agents has demonstrations for tiny models."""

    name: ClassVar[str]
    agents: ClassVar[tuple[str, str]]

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks, each in one split only, whatever the seed. MarlError where the split has not that
        many."""
        rng = random.Random(f"{self.name} {split} {seed}")
        return distinct(lambda: self._draw(rng, split), count, split, self.name)

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs on training tasks only: a share `good` is right, the others are careless."""
        if agent not in self.agents:
            raise unknown(f"agent of {self.name}", agent, self.agents)
        rng = random.Random(f"{self.name} demonstrations {agent} {seed}")
        pairs: list[tuple[str, str]] = []
        for _ in range(count):
            (task,) = distinct(lambda: self._draw(rng, "train"), 1, "train", self.name)
            pairs.append(self._demonstration(agent, task, right=rng.random() < good))
        return pairs

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        """One random task, or None where the draw is no task of this split."""
        raise NotImplementedError

    def _demonstration(self, agent: str, task: Task, right: bool) -> tuple[str, str]:
        raise NotImplementedError
