"""Plan-Path: reach the goal of a random board with walls. The game, and the task set for chat models."""

import dataclasses
import random
from dataclasses import dataclass
from typing import Annotated, ClassVar, Self

from annotated_types import Interval
from marl_verl_tiny.grid import cells, distances, neighbours

from marl_verl import Task
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_games.game import HELD_OUT, STEPS, Cell, Game, GameTasks, apart

WORDS = {"up": "U", "down": "D", "left": "L", "right": "R"}


def moves_in(text: str) -> tuple[str, ...] | None:
    """The moves of a text of words such as `up`. None without moves, or if anything else is among them."""
    moves = [WORDS.get(word.lower()) for word in text.split()]
    return tuple(move for move in moves if move) if moves and all(moves) else None


def place(cell: str) -> Cell:
    return ord(cell[0]) - ord("a"), int(cell[1:]) - 1


@dataclass(frozen=True)
class PathGame(Game):
    """A board and the cell of the team. Cells are named by a letter for the row and a number for the column, "a1" at
    the top left."""

    size: int
    walls: frozenset[str]
    start: str
    goal: str
    cell: str
    rules: ClassVar[str] = (
        "You are on a board: `.` is free, `#` is a wall, `@` is where you stand, `G` is the goal.\n"
        "A move is one cell: U (up, one row less), D (down, one row more), L (left, one column less), R (right, one "
        "column more).\nMoves off the board or into a wall are refused. Reach the goal in as few moves as possible."
    )
    only_moves: ClassVar[bool] = True

    @classmethod
    def of(cls, task: Task) -> Self:
        size, start, goal = int(task.data["size"]), str(task.data["start"]), str(task.data["goal"])
        return cls(size, frozenset(task.data["walls"]), start, goal, start)

    @property
    def solved(self) -> bool:
        return self.cell == self.goal

    @property
    def potential(self) -> float:
        """Minus the distance to the goal without walls."""
        return -apart(place(self.cell), place(self.goal))

    def left(self, cell: str) -> int:
        """Number of moves of a shortest walk from a cell to the goal; size**2: there is none."""
        return distances(self.size, self.walls, self.goal).get(cell, self.size**2)

    def beside(self, cell: str, move: str) -> str | None:
        """The free cell that a move leads to; None at the edge, or before a wall."""
        down, right = STEPS[move]
        near = f"{chr(ord(cell[0]) + down)}{int(cell[1:]) + right}"
        return near if near in neighbours(self.size)[cell] and near not in self.walls else None

    def board(self) -> str:
        """The board as text, a line a row: `.` free, `#` wall, `G` goal, `@` the team."""
        marks = {self.goal: "G", **dict.fromkeys(self.walls, "#"), self.cell: "@"}
        named = cells(self.size)
        rows = (named[row * self.size : (row + 1) * self.size] for row in range(self.size))
        return "\n".join("".join(marks.get(name, ".") for name in row) for row in rows)

    def drawn(self) -> str:
        (row, column), (goal_row, goal_column) = place(self.cell), place(self.goal)
        where = f"You stand at row {row}, column {column}; the goal is at row {goal_row}, column {goal_column}"
        return f"{self.board()}\n\n{where} (from 0)."

    def after(self, move: str) -> Self | str:
        near = self.beside(self.cell, move)
        return "a wall or the edge" if near is None else dataclasses.replace(self, cell=near)


Size = Annotated[int, Interval(ge=2, le=26)]


class PlanPath(GameTasks):
    """Random boards; an answer is a `log`, with score 1 if it ends on the goal. The defaults are the paper's.

    Options:
        size: side of the board, in cells (2 to 26).
        wall_share: probability that a cell is a wall (0 to below 1).
    """

    game = PathGame
    size: Size = 10
    wall_share: Annotated[float, Interval(ge=0, lt=1)] = 0.22

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """`count` different tasks. A board (walls, start, goal) is in one split only, whatever the seed. MarlError if
        the split has fewer."""
        rng = random.Random(f"{type(self).__name__} {split} {seed}")
        latest: dict[str, Task] = {}  # of a board that is drawn twice, with the landmark of the second time

        def draw() -> Task | None:
            task = self._draw(rng, split)
            if task is None or not self._fit(task):
                return None
            latest[task.id] = task
            return task

        return [latest[task.id] for task in distinct(draw, count, split, type(self).__name__)]

    def _near(self, left: int) -> bool:
        """Whether a shortest walk of this length is accepted; size**2: there is none."""
        return left < self.size**2

    def _fit(self, task: Task) -> bool:
        """Whether a board is accepted as a task."""
        return True

    def _draw(self, rng: random.Random, split: Split) -> Task | None:
        named = cells(self.size)
        walls = sorted(cell for cell in named if rng.random() < self.wall_share)
        free = [cell for cell in named if cell not in walls]
        if len(free) < 3:
            return None
        start, goal, landmark = rng.sample(free, 3)
        game = PathGame(self.size, frozenset(walls), start, goal, start)
        shown = f"{self.size} start {start} goal {goal} walls {' '.join(walls)}"
        if not self._near(game.left(start)) or held_out(shown, HELD_OUT) != (split == "test"):
            return None
        data = {"size": self.size, "walls": walls, "start": start, "goal": goal, "landmark": landmark}
        return Task(id=f"at-plan-path {shown}", prompt=game.board(), data=data)
