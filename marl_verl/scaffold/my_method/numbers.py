"""The task: a number that one agent sees, and the team is to write down."""

from __future__ import annotations

import random
from typing import Any

from marl_verl import MarlError, Task, TaskSet
from marl_verl.tasks import Split

DIGITS = "0123456789"
NUMBERS = [f"{number:03}" for number in range(1000)]
HELD_OUT = set(random.Random("held out").sample(NUMBERS, 100))  # the same, whatever the run's seed: never trained on


class Numbers(TaskSet):
    """Numbers of three digits, 900 to train on and 100 held out."""

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` numbers of a split. MarlError if there are not so many."""
        there = [number for number in NUMBERS if (number in HELD_OUT) == (split == "test")]
        if count > len(there):
            raise MarlError(f"there are {len(there)} {split} numbers, not {count}: set marl.task.{split}_size")
        return [Task(f"number-{n}", " ".join(n), {"digits": list(n)}) for n in random.Random(seed).sample(there, count)]

    def score(self, task: Task, answer: Any) -> float:
        """1 for the number, digit by digit, else 0."""
        return float(str(answer).split() == task.data["digits"])

    # what a tiny model learns from before training; a task for real models needs neither

    def vocabulary(self) -> list[str]:
        """Every word that an observation or an answer can hold."""
        return [*DIGITS, "number", "heard", "nothing"]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """(observation, answer) pairs, a share `good` of them right; the others repeat the first digit."""
        draw = random.Random(f"{agent} {seed}")
        seen = {"caller": "number", "writer": "heard"}[agent]
        pairs = []
        for number in draw.choices(sorted(set(NUMBERS) - HELD_OUT), k=count):
            # careless, and so that one agent's mistake does not undo the other's
            said = number if draw.random() < good else number[0] * 3
            pairs.append((f"{seen} {' '.join(number)}", " ".join(said)))
        return pairs
