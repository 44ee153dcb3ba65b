"""Workflows of the demo tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from marl_verl.episode import Workflow
from marl_verl.tasks import Task
from marl_verl_tiny import grid
from marl_verl_tiny.inventory import ASKER, DIGITS, HOLDER, NOTHING, asker_sees, holder_sees
from marl_verl_tiny.inventory_match import TEAMS
from marl_verl_tiny.split_plan_path import MOVER, SCOUT, mover_sees, scout_sees


class HolderAsker(Workflow):
    """The holder sends its digits; the asker answers."""

    async def run(self, task: Task, team: Any) -> str:
        return await _hold_and_ask(task, team, HOLDER, ASKER)


async def _hold_and_ask(task: Task, team: Any, holder: str, asker: str) -> str:
    """The asker's text, after the message of the holder."""
    held = await team[holder].act(holder_sees(task))
    sent = held.text.split()
    whole = len(sent) == len(task.data["digits"]) and all(word in DIGITS for word in sent)
    if not whole:
        team.invalid(held, "must be as many digits as the holder has")
    action = await team[asker].act(asker_sees(task, " ".join(sent) if whole else NOTHING))
    if action.text.strip() not in DIGITS:
        team.invalid(action, "not a digit")
    return str(action.text)


class InventoryMatchGame(Workflow):
    """Both teams play `inventory` on the same task at the same time, without seeing each other's messages."""

    async def run(self, task: Task, team: Any) -> dict[str, Any]:
        games = (_hold_and_ask(task, team, f"{side}-{HOLDER}", f"{side}-{ASKER}") for side in TEAMS)
        answers = dict(zip(TEAMS, await asyncio.gather(*games), strict=True))
        return {"text": ", ".join(f"{side} {answer}" for side, answer in answers.items()), "answers": answers}


class ScoutMover(Workflow):
    """The scout sends one cell and the mover walks; further turns continue from where the walk stopped.

    Options:
        turns: maximum number of turns; both agents act in each.
    """

    turns: int = 1

    async def run(self, task: Task, team: Any) -> str:
        size, walls, goal = task.data["size"], frozenset(task.data["walls"]), task.data["goal"]
        walked: list[str] = []
        for turn in range(self.turns):
            start = walked[-1] if walked else task.data["start"]
            seen = await team[SCOUT].act(scout_sees(task))
            message = seen.text.strip()
            if message not in grid.cells(size):
                team.invalid(seen, "not a cell of the map")
                message = NOTHING
            move = await team[MOVER].act(mover_sees(task, start, message))
            path = move.text.split()
            legal = grid.legal(size, walls, start, path)
            if legal != path:
                team.invalid(move, "a step into a wall, off the map, or to a cell that is not adjacent")
            if turn == self.turns - 1 or (legal == path and path and path[-1] == goal):
                return " ".join([*walked, *path])
            walked += legal
        return " ".join(walked)
