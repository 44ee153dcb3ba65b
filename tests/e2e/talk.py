"""A team whose agents keep their conversations, so that each prompt repeats what came before."""

from __future__ import annotations

from typing import Any

from marl_verl import Task, Workflow, hookimpl
from marl_verl.plugins import Registry
from marl_verl.tasks.inventory import NOTHING, asker_sees, holder_sees


class Talk(Workflow):
    """The holder sends its digits and the asker answers, over and over; the last answer counts.

    Options:
        rounds: turns of each agent.
    """

    rounds: int = 4

    async def run(self, task: Task, team: Any) -> str:
        said: dict[str, list[dict[str, Any]]] = {"holder": [], "asker": []}
        message = NOTHING
        for _ in range(self.rounds):
            for agent in said:
                seen = holder_sees(task) if agent == "holder" else asker_sees(task, message)
                said[agent].append({"role": "user", "content": seen})
                action = await team[agent].act(said[agent])
                said[agent].append(action.message)
                message = action.text.strip() or NOTHING
        return message


@hookimpl
def marl_register(registry: Registry) -> None:
    registry.workflow("talk", Talk)
