"""Sudoku 4x4 and 9x9: puzzles of reasoning-gym's generators, each with one solution."""

import dataclasses
import itertools
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from marl_verl import Task
from marl_verl.tasks import Split
from marl_verl_games.game import Game, GameTasks, puzzles

PLACED = re.compile(r"r([1-9])c([1-9])=([1-9])")
Grid = tuple[tuple[int, ...], ...]


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
