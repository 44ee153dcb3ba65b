"""The benchmarks' plugin: the inventory task for one agent, which stock verl is given in `stock.py`, and sums."""

import random
from typing import Any

from marl_verl_tiny.inventory import Inventory

from marl_verl import TaskSet, hookimpl


class Lookup(Inventory):
    """The inventory task with nothing split: one agent sees the list and the index."""

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"lookup {seed}")
        tasks = self.generate("train", 2000, seed)
        chosen = [rng.choice(tasks) for _ in range(count)]
        return [
            (task.prompt, task.data["digits"][task.data["index"] - 1 if rng.random() < good else 0]) for task in chosen
        ]


class Sums(TaskSet):
    """Sums of two digits, answered as GSM8K is: "#### 7". The careless answer is the first of the two numbers."""

    def vocabulary(self) -> list[str]:
        return ["plus", "####", *map(str, range(19))]

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"sums {seed}")
        pairs = [(rng.randint(0, 9), rng.randint(0, 9)) for _ in range(count)]
        return [(f"{a} plus {b}", f"#### {a + b if rng.random() < good else a}") for a, b in pairs]


@hookimpl
def marl_register(registry: Any) -> None:
    registry.task("lookup", Lookup)
    registry.task("sums", Sums)
