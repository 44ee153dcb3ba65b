"""Log of a team's plans and moves in a game: its answer, from which score and role rewards are computed.

    planner plans U R
    executor moves R U

The moves determine the state of the game; a plan on the last line counts as if it were executed exactly. A move is a
direction, or a digit in a cell of a Sudoku, "r1c2=3"; "!" is a word that is no move. A line without a list ends with
"?", one with an empty list with "[]", and one with a list of other things than words with "[?]".
"""

import ast
import functools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marl_verl import Episode, MarlError, Team, Turn

Verb = Literal["plans", "moves"]
NOTHING, EMPTY, NO_WORDS = "?", "[]", "[?]"
UNKNOWN = "!"
MOVE = rf"(?:[UDLR{UNKNOWN}]|r[1-9]c[1-9]=[1-9])"
LINE = re.compile(rf"(\S+) (plans|moves) (?:(\?|\[\]|\[\?\])|({MOVE}(?: {MOVE})*))")


@dataclass(frozen=True)
class Line:
    """One act. `moves` is None without a list of words; `words` is False if there is a list of other things."""

    agent: str
    verb: Verb
    moves: tuple[str, ...] | None
    words: bool = True

    def __str__(self) -> str:
        nothing = (NOTHING if self.words else NO_WORDS) if self.moves is None else EMPTY
        return f"{self.agent} {self.verb} {' '.join(self.moves or (nothing,))}"


def written(lines: Sequence[Line]) -> str:
    return "\n".join(map(str, lines))


def proposed(team: Team, lines: list[Line], line: Line) -> Line:
    """Add a line, and propose the log so far as the answer; the line."""
    lines.append(line)
    team.propose(written(lines))
    return line


def read(answer: str) -> list[Line]:
    """The lines of an answer. MarlError unless it is in the format of `written`."""
    return [_line(text) for text in answer.splitlines()]


@functools.lru_cache(maxsize=4096)
def _line(text: str) -> Line:
    if (match := LINE.fullmatch(" ".join(text.split()))) is None:
        raise MarlError(f"a line of a walk is '<agent> plans|moves U R ...', got {text!r:.60}")
    agent, verb, mark, moves = match.groups()
    words = None if mark in (NOTHING, NO_WORDS) else tuple((moves or "").split())
    return Line(agent, "plans" if verb == "plans" else "moves", words, mark != NO_WORDS)


def line_of(turn: Turn, episode: Episode) -> tuple[list[Line], int]:
    """The lines of an episode's answer, and the number of the one that an act added. MarlError: the answer has no line
    for the act (a sampler whose states have no answer)."""
    lines = read(episode.answer or "")
    own = [number for number, line in enumerate(lines) if line.agent == turn.agent]
    if turn.turn >= len(own):
        raise MarlError(f"the answer has no line for turn {turn.turn} of agent '{turn.agent}'")
    return lines, own[turn.turn]


Meaning = Callable[[str], str | None]  # word -> the move, or None if it is no move
_PRINTED = re.compile(r"(?:^|(Actions(?: List\*\*)?:))[ \t]*\[", re.MULTILINE)


def answered(agent: str, verb: Verb, text: str, meant: Meaning) -> Line:
    """The line of an answer: its last list in brackets, after the last `####` if it has one."""
    after = text.rpartition("####")[2]
    backwards = _balanced(after[: after.rfind("]") + 1][::-1])
    return _listed(agent, verb, backwards[::-1], meant) if backwards else Line(agent, verb, None)


def printed(agent: str, verb: Verb, output: str, meant: Meaning, only_moves: bool) -> Line:
    """The line of a program's output: its last list after "Actions List**:" or "Actions:", else at the start of a line.
    `only_moves`: whether a list with anything else than moves counts as none."""
    starts = list(_PRINTED.finditer(output))
    starts = [match for match in starts if match[1]] or starts
    text = _balanced(output[starts[-1].end() - 1 :]) if starts else ""
    line = _listed(agent, verb, text, meant) if text else Line(agent, verb, None)
    refused = only_moves and (line.moves is None or UNKNOWN in line.moves)
    return Line(agent, verb, None) if refused else line


def _balanced(text: str) -> str:
    """The beginning of a text, up to where all its brackets are closed; "" if they never are."""
    depth = 0
    for end, mark in enumerate(text, start=1):
        depth += {"[": 1, "]": -1}.get(mark, 0)
        if depth == 0:
            return text[:end]
    return ""


def _listed(agent: str, verb: Verb, text: str, meant: Meaning) -> Line:
    items = _items(text)
    if items is None:  # without quotation marks
        moves = [meant(word) for word in re.split(r"[\s,]+", text[1:-1].strip(" \t\n,"))]
        return Line(agent, verb, tuple(move for move in moves if move) if all(moves) else None)
    if not all(isinstance(item, str) for item in items):
        return Line(agent, verb, None, words=False)
    return Line(agent, verb, tuple(meant(item) or UNKNOWN for item in items))


def _items(text: str) -> list[Any] | None:
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return items if isinstance(items, list) else None
    return None
