"""Random tasks of two agents, with demonstrations for their tiny models."""

from __future__ import annotations

import random
from typing import ClassVar

from marl_verl.errors import unknown
from marl_verl.tasks import Split, Task, TaskSet, distinct


class DrawnTasks(TaskSet):
    """Base of the bundled task sets: random tasks, and demonstrations for the tiny models of its two agents. The
    `vocabulary` contains every word of an observation or an answer."""

    quick = True
    name: ClassVar[str]
    agents: ClassVar[tuple[str, str]]

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """Generate `count` different tasks; splits are disjoint for all seeds. MarlError if the split has fewer."""
        rng = random.Random(f"{self.name} {split} {seed}")
        return distinct(lambda: self._draw(rng, split), count, split, self.name)

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs of training tasks: a share `good` is correct, the others are careless."""
        if agent not in self.agents:
            raise unknown(f"agent of {self.name}", agent, self.agents)
        rng = random.Random(f"{self.name} demonstrations {agent} {seed}")
        pairs: list[tuple[str, str]] = []
        for _ in range(count):
            (task,) = distinct(lambda: self._draw(rng, "train"), 1, "train", self.name)
            pairs.append(self._demonstration(agent, task, right=rng.random() < good))
        return pairs

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        """One random task, or None if it is not in this split."""
        raise NotImplementedError

    def _demonstration(self, agent: str, task: Task, right: bool) -> tuple[str, str]:
        raise NotImplementedError
