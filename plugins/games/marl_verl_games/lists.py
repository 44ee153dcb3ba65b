"""Read what chat models write as lines of a `log`: the list of moves of an answer, or of a program's output."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from marl_verl_games import log

Meaning = Callable[[str], str | None]
"""Word -> the move, or None if it is no move."""
_PRINTED = re.compile(r"(?:^|(Actions(?: List\*\*)?:))[ \t]*\[", re.MULTILINE)


def answered(agent: str, verb: log.Verb, text: str, meant: Meaning) -> log.Line:
    """The line of an answer: its last list in brackets, after the last `####` if it has one."""
    after = text.rpartition("####")[2]
    end, depth = after.rfind("]"), 0
    for start in range(end, -1, -1):
        depth += {"]": 1, "[": -1}.get(after[start], 0)
        if depth == 0:
            return _line(agent, verb, after[start : end + 1], meant)
    return log.Line(agent, verb, None)


def printed(agent: str, verb: log.Verb, output: str, meant: Meaning, only_moves: bool) -> log.Line:
    """The line of a program's output: its last list after "Actions List**:" or "Actions:", else at the start of a line.

    Args:
        only_moves: whether a list with anything else than moves counts as none.
    """
    starts = list(_PRINTED.finditer(output))
    start = next(iter([*(match for match in reversed(starts) if match[1]), *reversed(starts)]), None)
    if start is not None:
        depth = 0
        for end in range(start.end() - 1, len(output)):
            depth += {"[": 1, "]": -1}.get(output[end], 0)
            if depth == 0:
                line = _line(agent, verb, output[start.end() - 1 : end + 1], meant)
                refused = only_moves and (line.moves is None or log.UNKNOWN in line.moves)
                return log.Line(agent, verb, None) if refused else line
    return log.Line(agent, verb, None)


def _line(agent: str, verb: log.Verb, text: str, meant: Meaning) -> log.Line:
    items = _items(text)
    if items is None:  # without quotation marks
        moves = [meant(word) for word in re.split(r"[\s,]+", text[1:-1].strip(" \t\n,"))]
        return log.Line(agent, verb, tuple(move for move in moves if move) if all(moves) else None)
    if not all(isinstance(item, str) for item in items):
        return log.Line(agent, verb, None, words=False)
    return log.Line(agent, verb, tuple(meant(item) or log.UNKNOWN for item in items))


def _items(text: str) -> list[Any] | None:
    for read in (json.loads, ast.literal_eval):
        try:
            items = read(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return items if isinstance(items, list) else None
    return None
