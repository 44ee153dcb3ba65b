"""Plugin file of the throughput check: one agent solves the inventory task alone, as the model of stock verl does."""

from __future__ import annotations

from typing import Any

from marl_verl import Task, Workflow, hookimpl


class Solve(Workflow):
    """One agent, one act."""

    async def run(self, task: Task, team: Any) -> str:
        return str((await team["solver"].act(task.prompt)).text)


@hookimpl
def marl_register(registry: Any) -> None:
    registry.workflow("solve", Solve)
