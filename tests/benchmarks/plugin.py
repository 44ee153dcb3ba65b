"""A one-agent team on the inventory task, as a plugin: the same problem that stock verl is given in `stock.py`."""

from __future__ import annotations

import random
from typing import Any

from marl_verl import Task, Workflow, hookimpl
from marl_verl.tasks.inventory import Inventory


class Lookup(Inventory):
    """The inventory task with nothing split: one agent sees the list and the index."""

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        rng = random.Random(f"lookup {seed}")
        tasks = self.generate("train", 2000, seed)
        chosen = [rng.choice(tasks) for _ in range(count)]
        return [
            (task.prompt, task.data["digits"][task.data["index"] - 1 if rng.random() < good else 0]) for task in chosen
        ]


class Solve(Workflow):
    """One agent, one act."""

    async def run(self, task: Task, team: Any) -> str:
        return str((await team["solver"].act(task.prompt)).text)


@hookimpl
def marl_register(registry: Any) -> None:
    registry.task("lookup", Lookup)
    registry.workflow("solve", Solve)
