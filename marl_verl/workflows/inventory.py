"""The workflow of the inventory task: the holder sends what it holds, the asker answers."""

from __future__ import annotations

from typing import Any

from marl_verl.episode import Workflow
from marl_verl.tasks.base import Task
from marl_verl.tasks.inventory import ASKER, DIGITS, HOLDER, NOTHING, asker_sees, holder_sees


class HolderAsker(Workflow):
    """The holder sends what it holds, the asker answers."""

    async def run(self, task: Task, team: Any) -> str:
        """The asker's answer."""
        held = await team[HOLDER].act(holder_sees(task))
        sent = held.text.split()
        whole = len(sent) == len(task.data["digits"]) and all(word in DIGITS for word in sent)
        if not whole:
            team.invalid(held, "not as many digits as it holds")
        action = await team[ASKER].act(asker_sees(task, " ".join(sent) if whole else NOTHING))
        if action.text.strip() not in DIGITS:
            team.invalid(action, "no digit")
        return str(action.text)
