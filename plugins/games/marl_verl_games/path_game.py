"""Plan-Path as a game for chat models."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Self

from marl_verl import Task
from marl_verl_games.board import STEPS, Board, place
from marl_verl_games.game import Game


@dataclass(frozen=True)
class PathGame(Game):
    """A board and the cell of the team."""

    board: Board
    cell: str
    rules: ClassVar[str] = (
        "You are on a board: `.` is free, `#` is a wall, `@` is where you stand, `G` is the goal.\n"
        "A move is one cell: U (up, one row less), D (down, one row more), L (left, one column less), R (right, one "
        "column more).\nMoves off the board or into a wall are refused. Reach the goal in as few moves as possible."
    )
    example: ClassVar[str] = '["U", "R"]'
    only_moves: ClassVar[bool] = True

    @classmethod
    def of(cls, task: Task) -> PathGame:
        """The first state of a task."""
        return cls(Board.of(task), str(task.data["start"]))

    @property
    def solved(self) -> bool:
        return self.cell == self.board.goal

    @property
    def potential(self) -> float:
        """Minus the distance to the goal without walls."""
        (row, column), (goal_row, goal_column) = place(self.cell), place(self.board.goal)
        return -abs(row - goal_row) - abs(column - goal_column)

    @property
    def left(self) -> int:
        """Length of a shortest walk to the goal."""
        return self.board.left(self.cell)

    @property
    def shortest(self) -> int:
        """Number of moves of a shortest walk from the start of the board."""
        return self.board.left(self.board.start)

    def drawn(self) -> str:
        (row, column), (goal_row, goal_column) = place(self.cell), place(self.board.goal)
        where = (
            f"You stand at row {row}, column {column}; the goal is at row {goal_row}, column {goal_column} (from 0)."
        )
        return f"{self.board.drawn(self.cell)}\n\n{where}"

    def legal(self) -> str:
        return ", ".join(move for move in STEPS if self.board.beside(self.cell, move) is not None)

    def move(self, word: str) -> str | None:
        return word if word in STEPS else None

    def after(self, move: str) -> Self | str:
        if move not in STEPS:
            return "no move of this game"
        near = self.board.beside(self.cell, move)
        return "a wall or the edge" if near is None else dataclasses.replace(self, cell=near)
