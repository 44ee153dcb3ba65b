"""Split Plan-Path: one agent knows the goal, the other one the map; neither can succeed alone.

The scout sees the goal and a landmark and sends the mover one cell. The mover sees its start, the walls and that cell,
and writes the cells to walk; a straight walk never suffices. The team succeeds if the walk is legal and *stops* on the
goal (without that rule, answers would grow until they cross it).
"""

import random
from typing import Annotated, Any

from annotated_types import Ge, Interval

from marl_verl.episode import Workflow
from marl_verl.options import NonNegative
from marl_verl.tasks import DrawnTasks, Task
from marl_verl_tiny import grid

SCOUT, MOVER = "scout", "mover"
NOTHING = "none"  # the mover's message if the scout did not send one cell


class SplitPlanPath(DrawnTasks):
    """Tasks on random maps. A map (start, walls, goal) is in one split only.

    In careless demonstrations the scout sends the landmark, and the mover walks along one axis and ignores the walls;
    training then reweights both behaviours.

    Options:
        size: side of the grid, in cells (2 to 9).
        walls: number of wall cells.
        reach: maximum number of steps between start and goal (at least 2).
    """

    quick = True
    name = "split-plan-path"
    agents = (SCOUT, MOVER)
    size: Annotated[int, Interval(ge=2, le=9)] = 4
    walls: NonNegative = 2
    reach: Annotated[int, Ge(2)] = 4

    def score(self, task: Task, answer: Any) -> float:
        """1 for a legal walk (the cells entered, separated by spaces) that stops on the goal, else 0."""
        return float(self._legal(task, answer)[-1:] == [task.data["goal"]])

    def public_score(self, task: Task, answer: Any) -> float:
        """1 for a legal walk of at least one step, wherever it stops, else 0: needs no knowledge of the goal."""
        return float(bool(self._legal(task, answer)))

    def _legal(self, task: Task, answer: Any) -> list[str]:
        path = answer.split()
        return path if grid.legal(self.size, frozenset(task.data["walls"]), task.data["start"], path) == path else []

    def vocabulary(self) -> list[str]:
        return [*grid.cells(self.size), "goal", "landmark", "start", "walls", "message", NOTHING]

    def _demonstration(self, agent: str, task: Task, rng: random.Random, good: float) -> tuple[str, str]:
        right = rng.random() < good
        start, goal, landmark = (str(task.data[key]) for key in ("start", "goal", "landmark"))
        if agent == SCOUT:
            return scout_sees(task), goal if right else landmark
        walls = frozenset(task.data["walls"])
        path = grid.walk(self.size, walls, start, goal) if right else grid.straight(self.size, start, goal)
        return mover_sees(task, start, goal), " ".join(path)

    def _random_task(self, rng: random.Random) -> tuple[str, Task] | None:
        start, goal, landmark, *walls = rng.sample(grid.cells(self.size), 3 + self.walls)
        walls.sort()
        left = grid.distances(self.size, frozenset(walls), start)
        if left.get(goal, self.reach + 1) > self.reach or landmark not in left:
            return None
        ahead = grid.straight(self.size, start, goal)
        if ahead[-1] == goal and grid.legal(self.size, frozenset(walls), start, ahead) == ahead:
            return None  # too easy: a straight walk would suffice
        board = f"start {start} walls {' '.join(walls)} goal {goal}"
        data = {"size": self.size, "start": start, "walls": walls, "goal": goal, "landmark": landmark}
        prompt = f"{board} landmark {landmark}"
        return f"{self.size} {board}", Task(f"plan-path {self.size} {prompt}", prompt, data)


def scout_sees(task: Task) -> str:
    return f"goal {task.data['goal']} landmark {task.data['landmark']}"


def mover_sees(task: Task, start: str, message: str) -> str:
    return f"start {start} walls {' '.join(task.data['walls'])} message {message}"


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
