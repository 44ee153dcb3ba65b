"""Sokoban: push every box onto a goal. Boards of reasoning-gym's generator, which has a solution of each."""

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Interval

from marl_verl import Task
from marl_verl.tasks import Split
from marl_verl_games.game import STEPS, Cell, Game, GameTasks, Played, apart, play, puzzles

MARKS = {"+": "#", "-": ".", "@": "B", "X": "O", "$": "*", "*": "@", "%": "+"}  # reasoning-gym's -> ours
APART = 2  # in rows plus columns


@dataclass(frozen=True)
class Sokoban(Game):
    """A board; cells are (row, column) from 0."""

    size: int
    walls: frozenset[Cell]
    goals: frozenset[Cell]
    boxes: frozenset[Cell]
    player: Cell
    rules: ClassVar[str] = (
        "Sokoban: `#` is a wall, `.` is free, `B` a box, `O` a goal, `*` a box on a goal, `@` you, `+` you on a goal.\n"
        "A move is one cell: U (up), D (down), L (left), R (right). You push a box that is in your way if the cell "
        "behind it is free; you cannot pull. Put every box on a goal."
    )
    most_moves: ClassVar[int] = 200

    @classmethod
    def of(cls, task: Task) -> Self:
        rows, at = task.data["rows"], dict[str, list[Cell]]()
        for row, text in enumerate(rows):
            for column, mark in enumerate(text):
                at.setdefault(mark, []).append((row, column))
        boxes, goals = at.get("B", []) + at.get("*", []), at.get("O", []) + at.get("*", []) + at.get("+", [])
        (player,) = at.get("@", []) + at.get("+", [])
        return cls(len(rows), frozenset(at.get("#", [])), frozenset(goals), frozenset(boxes), player)

    @property
    def solved(self) -> bool:
        return self.boxes <= self.goals

    @property
    def potential(self) -> float:
        """Minus the sum over the boxes of the distance to the nearest goal, without walls."""
        return -sum(min(apart(box, goal) for goal in self.goals) for box in self.boxes)

    @property
    def on_goals(self) -> int:
        return len(self.boxes & self.goals)

    def drawn(self) -> str:
        return "\n".join("".join(self._mark((row, column)) for column in range(self.size)) for row in range(self.size))

    def after(self, move: str) -> Self | str:
        down, right = STEPS[move]
        to = (self.player[0] + down, self.player[1] + right)
        if self._blocked(to):
            return "a wall"
        if to not in self.boxes:
            return dataclasses.replace(self, player=to)
        behind = (to[0] + down, to[1] + right)
        if self._blocked(behind) or behind in self.boxes:
            return "the box cannot move"
        return dataclasses.replace(self, boxes=self.boxes - {to} | {behind}, player=to)

    def _blocked(self, cell: Cell) -> bool:
        return cell in self.walls or not all(0 <= place < self.size for place in cell)

    def _mark(self, cell: Cell) -> str:
        goal = cell in self.goals
        if cell == self.player:
            return "+" if goal else "@"
        if cell in self.boxes:
            return "*" if goal else "B"
        return "O" if goal else "#" if cell in self.walls else "."


class SokobanTasks(GameTasks):
    """Boards of Sokoban that can be solved; an answer is a `log`, with score 1 if it solves the board. Each box can be
    given a goal of its own that is at least `APART` from it.

    Options:
        size: side of the board with its walls (5 to 10).
        boxes: number of boxes (1 to 4).
    """

    game = Sokoban
    slow = True  # the generator takes 0.1 s a task

    size: Annotated[int, Interval(ge=5, le=10)] = 6
    boxes: Annotated[int, Interval(ge=1, le=4)] = 1

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        sides = dict.fromkeys(("min_w", "max_w", "min_h", "max_h"), self.size)
        return puzzles(self._task, "sokoban", count, split, seed, min_boxes=self.boxes, max_boxes=self.boxes, **sides)

    def _task(self, entry: Any) -> Task | None:
        lines = entry["metadata"]["gamestr"].splitlines()
        rows = ["".join(MARKS[mark] for mark in line.split()) for line in lines if line.strip()]
        task = Task(f"sokoban {' '.join(rows)}", "\n".join(rows), {"game": "sokoban", "rows": rows})
        game = Sokoban.of(task)
        pairs = (list(zip(game.boxes, goals, strict=True)) for goals in itertools.permutations(game.goals))
        if not any(all(apart(box, goal) >= APART for box, goal in pairing) for pairing in pairs):
            return None
        return task if play(Played(game), entry["answer"] or "").game.solved else None
