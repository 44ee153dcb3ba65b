"""What a task is: one problem, and the set it comes from, which also scores the team's answer; and how tasks are drawn
at random: as many different ones as are wanted, each in one split whatever the seed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from marl_verl.errors import MarlError, unknown
from marl_verl.options import Options

Split = Literal["train", "test"]
TRIES = 10_000  # draws in a row without a new task, after which there seem to be no more


@dataclass(frozen=True)
class Task:
    """One problem.

    Attributes:
        id: unique in its task set, stable between runs (held-out sets are told apart by it).
        prompt: the problem in words; a workflow may show an agent only a part of `data` instead.
        data: everything else that workflow and scoring need, as JSON values.
    """

    id: str
    prompt: str
    data: dict[str, Any] = field(default_factory=dict)


class TaskSet(Options):
    """A family of tasks and what scores them. Annotated attributes are its options in config (`marl.task.options`)."""

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` tasks of a split, the same for the same seed; no task of "test" is ever in "train"."""
        raise NotImplementedError(f"{type(self).__name__} makes no tasks of its own: give marl.task.{split}_file")

    def score(self, task: Task, answer: Any) -> Any:
        """The team reward of an episode with this answer, a number. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def success(self, task: Task, answer: Any) -> Any:
        """Whether the team solved the task: what validation counts. May be async; this default is never called where an
        answer has been scored already."""
        return self.score(task, answer) >= 1.0

    def public_score(self, task: Task, answer: Any) -> Any:
        """What may be known of an answer without the solution (public tests, a check of its form), a number: by it
        inference chooses among attempts, which `score` then judges. May be async."""
        raise NotImplementedError(f"{type(self).__name__} has no public_score: without one nothing can be chosen by it")


def distinct(draw: Callable[[], Task | None], count: int, split: Split, name: str) -> list[Task]:
    """`count` different tasks, in the order drawn. MarlError, which begins with `name`, if the split has fewer.

    Args:
        draw: one random task, or None where the draw is no task of this split.
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
    """A bundled task set: tasks are drawn at random, and each of two agents has demonstrations for tiny models, whose
    `vocabulary` is every word that an observation or an answer can hold."""

    name: ClassVar[str]
    agents: ClassVar[tuple[str, str]]

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks, each in one split only, whatever the seed. MarlError if the split has fewer."""
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
