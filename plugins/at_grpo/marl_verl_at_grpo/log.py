"""Log of a team's plans and moves on a board: its answer, from which score and role rewards are computed.

    planner plans U R
    executor moves R U

The moves determine the team's cell; a plan on the last line counts as if it were executed exactly. A line without
parsable moves ends with "?".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl.errors import MarlError
from marl_verl_at_grpo.board import STEPS, Board, Walk

Verb = Literal["plans", "moves"]
NOTHING = "?"


@dataclass(frozen=True)
class Line:
    """One act. `moves` is None if they could not be parsed."""

    agent: str
    verb: Verb
    moves: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"{self.agent} {self.verb} {' '.join(self.moves or (NOTHING,))}"


def written(lines: Sequence[Line]) -> str:
    """Format lines as the team's answer."""
    return "\n".join(map(str, lines))


def read(answer: Any) -> list[Line]:
    """The lines of an answer.

    Raises:
        MarlError: the answer is not in the format of `written`.
    """
    if not isinstance(answer, str):
        raise MarlError(f"a walk is scored from a text, got {type(answer).__name__}")
    return [_line(text) for text in answer.splitlines()]


def _line(text: str) -> Line:
    agent, verb, *moves = text.split() if len(text.split()) > 2 else ("", "", NOTHING)
    if verb not in ("plans", "moves") or (moves != [NOTHING] and not set(moves) <= STEPS.keys()):
        raise MarlError(f"a line of a walk is '<agent> plans|moves U R ...', got {text!r:.60}")
    return Line(agent, "plans" if verb == "plans" else "moves", None if moves == [NOTHING] else tuple(moves))


def executed(board: Board, lines: Sequence[Line]) -> Walk:
    """The walk of all moves in the lines, from the start; plans are ignored."""
    return board.walk(board.start, [move for line in lines if line.verb == "moves" for move in line.moves or ()])


def walk(board: Board, lines: Sequence[Line]) -> Walk:
    """As `executed`, with a plan on the last line executed as moves."""
    last = [Line(line.agent, "moves", line.moves) for line in lines[-1:]]
    return executed(board, [*lines[:-1], *last])
