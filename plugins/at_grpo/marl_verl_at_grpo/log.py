"""What a team on a board did, line by line: its answer, from which a score and everybody's reward can be told.

    planner plans U R
    executor moves R U

The team stands where its moves led; a plan at the end counts as if it were carried out to the letter. A line without
moves that can be read ends with "?".
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
    """One act. `moves` None: it could not be read."""

    agent: str
    verb: Verb
    moves: tuple[str, ...] | None

    def __str__(self) -> str:
        return f"{self.agent} {self.verb} {' '.join(self.moves or (NOTHING,))}"


def written(lines: Sequence[Line]) -> str:
    """The answer."""
    return "\n".join(map(str, lines))


def read(answer: Any) -> list[Line]:
    """The lines of an answer.

    Raises:
        MarlError: it is not what `written` gives.
    """
    if not isinstance(answer, str):
        raise MarlError(f"a walk is scored from a text, got {type(answer).__name__}")
    return [_line(text) for text in answer.splitlines()]


def _line(text: str) -> Line:
    agent, verb, *moves = text.split() if len(text.split()) > 2 else ("", "", NOTHING)
    if verb not in ("plans", "moves") or (moves != [NOTHING] and not set(moves) <= STEPS.keys()):
        raise MarlError(f"a line of a walk is '<agent> plans|moves U R ...', got {text!r:.60}")
    return Line(agent, "plans" if verb == "plans" else "moves", None if moves == [NOTHING] else tuple(moves))


def stands(board: Board, lines: Sequence[Line]) -> Walk:
    """Where the moves among some lines led from the start: all of them, as one walk. Plans move nobody."""
    return board.walk(board.start, [move for line in lines if line.verb == "moves" for move in line.moves or ()])


def walk(board: Board, lines: Sequence[Line]) -> Walk:
    """The same, with a plan at the end carried out to the letter."""
    last = [Line(line.agent, "moves", line.moves) for line in lines[-1:]]
    return stands(board, [*lines[:-1], *last])
