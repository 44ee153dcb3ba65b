"""Two teams answer the same question of the inventory game, each with a holder and an asker, and are compared."""

from __future__ import annotations

from typing import Any

from marl_verl.tasks import Task, TaskSet
from marl_verl_tiny.inventory import Inventory

TEAMS = ("red", "blue")


class InventoryMatch(Inventory):
    """Tasks of `inventory` for two teams: agents `red-holder` and `red-asker` of side `red`, and so for `blue`.

    A side scores 1 if only its team answers right, -1 if only the other does, else 0.
    """

    public_score = TaskSet.public_score  # an answer of two teams has none

    sides = TEAMS

    def demonstrations(self, agent: str, count: int, seed: int, good: float) -> list[tuple[str, str]]:
        """Those of the agent's role in `inventory`; the same for both teams."""
        return super().demonstrations(agent.partition("-")[2], count, seed, good)

    def score(self, task: Task, answer: Any) -> Any:
        """Side -> its score."""
        red, blue = (Inventory.score(self, task, answer["answers"][side]) for side in TEAMS)
        return dict(zip(TEAMS, (red - blue, blue - red), strict=True))

    def success(self, task: Task, answer: Any) -> bool:
        """Whether both teams answer right: what scores that add up to 0 cannot show."""
        return all(Inventory.score(self, task, answer["answers"][side]) >= 1 for side in TEAMS)
