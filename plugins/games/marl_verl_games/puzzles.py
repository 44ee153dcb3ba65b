"""Sokoban and Sudoku: games, and task sets of puzzles that reasoning-gym's generators make with their solutions."""

import dataclasses
import itertools
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Interval

from marl_verl import Task
from marl_verl.errors import user_error
from marl_verl.tasks import Split, distinct, held_out
from marl_verl_games.game import HELD_OUT, STEPS, Cell, Game, GameTasks, Played, apart, play

Grid = tuple[tuple[int, ...], ...]
MARKS = {"+": "#", "-": ".", "@": "B", "X": "O", "$": "*", "*": "@", "%": "+"}  # reasoning-gym's -> ours
APART = 2  # in rows plus columns
PLACED = re.compile(r"r([1-9])c([1-9])=([1-9])")


def puzzles(
    task_of: Callable[[Any], Task | None], generator: str, count: int, split: Split, seed: int, **options: int
) -> list[Task]:
    """`count` different tasks of the entries of a generator of reasoning-gym. A puzzle is in one split only, whatever
    the seed. MarlError if there are fewer, or if the generator refuses the options."""
    import reasoning_gym  # seconds

    name = generator.removeprefix("mini_")
    first = random.Random(f"{name} {split} {seed}").randrange(1 << 29)
    with user_error(f"reasoning-gym '{generator}' refuses marl.task.options", AssertionError):
        entries = reasoning_gym.create_dataset(generator, seed=first, **options)
    tasks = (task_of(entries[number]) for number in itertools.count())
    drawn = (task if task and held_out(task.id, HELD_OUT) == (split == "test") else None for task in tasks)
    return distinct(lambda: next(drawn), count, split, name)


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


@dataclass(frozen=True)
class Sudoku(Game):
    """A grid of digits, 0 for an empty cell; `given` are those of the puzzle."""

    given: Grid
    grid: Grid
    solution: Grid
    rules: ClassVar[str] = (
        "Sudoku: fill the empty cells (`_`) so that every row, every column and every box has each digit once.\n"
        "A move puts a digit into a cell: r2c3=4 puts 4 into row 2, column 3 (from 1). A digit that the row, column or "
        "box already has, and a cell of the puzzle itself, are refused; your own digits can be replaced."
    )
    example: ClassVar[str] = '["r1c2=3", "r4c4=1"]'

    @classmethod
    def of(cls, task: Task) -> Self:
        puzzle, solution = (tuple(tuple(row) for row in task.data[name]) for name in ("puzzle", "solution"))
        return cls(puzzle, puzzle, solution)

    @property
    def solved(self) -> bool:
        return self.grid == self.solution

    @property
    def potential(self) -> float:
        """Number of own digits that are right minus those that are wrong, divided by that of the empty cells."""
        cells = zip(*(itertools.chain(*grid) for grid in (self.given, self.grid, self.solution)), strict=True)
        own = [(digit, solution) for given, digit, solution in cells if not given]
        right = [digit == solution for digit, solution in own if digit]
        return (2 * sum(right) - len(right)) / max(len(own), 1)

    def drawn(self) -> str:
        return "\n".join(" ".join(str(digit or "_") for digit in row) for row in self.grid)

    def legal(self) -> str:
        """The possible digits of each empty cell, such as r1c2=1|3."""
        size, legal = len(self.grid), []
        for row, column in itertools.product(range(size), repeat=2):
            digits = [str(digit) for digit in range(1, size + 1) if not self._clash(row, column, digit)]
            if digits and not self.grid[row][column]:
                legal.append(f"r{row + 1}c{column + 1}={'|'.join(digits)}")
        return ", ".join(legal)

    def move(self, word: str) -> str | None:
        return word.lower() if PLACED.fullmatch(word.lower()) else None

    def after(self, move: str) -> Self | str:
        row, column, digit = (int(part) - on for part, on in zip(PLACED.findall(move)[0], (1, 1, 0), strict=True))
        size = len(self.grid)
        if max(row + 1, column + 1, digit) > size:
            return f"outside the {size}x{size} grid"
        if self.given[row][column]:
            return "a cell of the puzzle"
        if clash := self._clash(row, column, digit):
            return f"{digit} is already in the {clash}"
        rows = [list(digits) for digits in self.grid]
        rows[row][column] = digit
        return dataclasses.replace(self, grid=tuple(map(tuple, rows)))

    def _clash(self, row: int, column: int, digit: int) -> str:
        """Where else the digit is: "row", "column", "box", or ""."""
        size = len(self.grid)
        side = round(size**0.5)
        top, left = row - row % side, column - column % side
        for name, cells in (
            ("row", [(row, place) for place in range(size)]),
            ("column", [(place, column) for place in range(size)]),
            ("box", itertools.product(range(top, top + side), range(left, left + side))),
        ):
            if any(self.grid[at][to] == digit for at, to in cells if (at, to) != (row, column)):
                return name
        return ""


class SudokuTasks(GameTasks):
    """Puzzles with one solution; an answer is a `log`, with score 1 if it fills the grid with the solution.

    Options:
        size: 4 or 9.
        min_empty, max_empty: number of empty cells (at most 12 for size 4).
    """

    game = Sudoku

    size: Literal[4, 9] = 4
    min_empty: int = 6
    max_empty: int = 10

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        empty = {"min_empty": self.min_empty, "max_empty": self.max_empty}
        return puzzles(self._task, {4: "mini_sudoku", 9: "sudoku"}[self.size], count, split, seed, **empty)

    def _task(self, entry: Any) -> Task | None:
        puzzle = entry["metadata"]["puzzle"]
        data = {"game": "sudoku", "puzzle": puzzle, "solution": entry["metadata"]["solution"]}
        shown = " ".join("".join(map(str, row)) for row in puzzle)
        task = Task(f"sudoku {shown}", "", data)
        return dataclasses.replace(task, prompt=Sudoku.of(task).drawn()) if "0" in shown else None
