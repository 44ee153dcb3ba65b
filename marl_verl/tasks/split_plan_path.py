"""Split Plan-Path: one agent knows where to go, the other knows how to get there; neither can succeed alone.

The scout sees the goal and a landmark and sends the mover one cell. The mover sees its start, the walls and that cell,
and writes the cells to walk; walking straight on is never enough. The team succeeds when the walk is legal and *stops*
on the goal (without that rule answers grow until they cross it).
"""

from __future__ import annotations

import random
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.tasks import grid
from marl_verl.tasks.base import DrawnTasks, Split, Task, held_out

SCOUT, MOVER = "scout", "mover"
NOTHING = "none"  # what the mover reads when the scout did not send one cell
HELD_OUT = 10  # one map in ten


class SplitPlanPath(DrawnTasks):
    """Tasks on random maps. A map (start, walls, goal) is in one split only.

    The careless scout names the landmark, and the careless mover walks along one axis and ignores the walls. Uniform
    noise instead would leave the updates nothing to select.

    Options:
        size: side of the grid, in cells (2 to 9).
        walls: number of wall cells.
        reach: the most steps between start and goal (at least 2).
    """

    name = "split-plan-path"
    agents = (SCOUT, MOVER)
    size: int = 4
    walls: int = 2
    reach: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.size <= 9:
            raise MarlError(f"split-plan-path: size must be 2 to 9, got {self.size}")
        if not 0 <= self.walls <= self.size**2 - 3:
            raise MarlError(f"split-plan-path: a {self.size}x{self.size} grid cannot hold {self.walls} walls")
        if self.reach < 2:
            raise MarlError(f"split-plan-path: reach must be at least 2, got {self.reach}")

    def score(self, task: Task, answer: Any) -> float:
        """1 for a legal walk (the cells entered, separated by spaces) that stops on the goal, else 0. MarlError unless
        the answer is text."""
        return float(self._legal(task, answer)[-1:] == [task.data["goal"]])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 for a legal walk of at least one step, wherever it stops, else 0: what shows without the goal."""
        return float(bool(self._legal(task, answer)))

    def _legal(self, task: Task, answer: Any) -> list[str]:
        """The cells of an answer that is a legal walk, none for another one."""
        if not isinstance(answer, str):
            raise MarlError(f"split-plan-path scores a walk as text, got {type(answer).__name__}")
        path = answer.split()
        return path if grid.legal(self.size, frozenset(task.data["walls"]), task.data["start"], path) == path else []

    def vocabulary(self) -> list[str]:
        return [*grid.cells(self.size), "goal", "landmark", "start", "walls", "message", NOTHING]

    def _demonstration(self, agent: str, task: Task, right: bool) -> tuple[str, str]:
        start, goal, landmark = (str(task.data[key]) for key in ("start", "goal", "landmark"))
        if agent == SCOUT:
            return scout_sees(task), goal if right else landmark
        walls = frozenset(task.data["walls"])
        path = grid.walk(self.size, walls, start, goal) if right else grid.straight(self.size, start, goal)
        return mover_sees(task, start, goal), " ".join(path)

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        start, goal, landmark, *walls = rng.sample(grid.cells(self.size), 3 + self.walls)
        walls.sort()
        left = grid.distances(self.size, frozenset(walls), start)
        if left.get(goal, self.reach + 1) > self.reach or landmark not in left:
            return None
        ahead = grid.straight(self.size, start, goal)
        if ahead[-1] == goal and grid.legal(self.size, frozenset(walls), start, ahead) == ahead:
            return None  # too easy: a mover that only ever walks straight on would do, trained or not
        board = f"start {start} walls {' '.join(walls)} goal {goal}"
        if held_out(f"{self.size} {board}", HELD_OUT) != (split == "test"):
            return None
        data = {"size": self.size, "start": start, "walls": walls, "goal": goal, "landmark": landmark}
        prompt = f"{board} landmark {landmark}"
        return Task(id=f"plan-path {self.size} {prompt}", prompt=prompt, data=data)


def scout_sees(task: Task) -> str:
    """The scout's observation: where to go, and a landmark that does not matter."""
    return f"goal {task.data['goal']} landmark {task.data['landmark']}"


def mover_sees(task: Task, start: str, message: str) -> str:
    """The mover's observation: where it stands, the walls, and the cell that the scout sent."""
    return f"start {start} walls {' '.join(task.data['walls'])} message {message}"
