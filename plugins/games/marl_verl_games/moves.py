"""Read a list of moves from a text."""

from __future__ import annotations

import re
from collections.abc import Callable

_LIST = re.compile(r"\[([^\[\]]*)\]")


def listed(text: str, meant: Callable[[str], str | None]) -> tuple[str, ...] | None:
    """The moves of a text: its last list in brackets, `["U", "R"]`, or, without one, all of its words.

    None without moves, or if anything else is among them.

    Args:
        meant: word -> the move, or None if it is no move.
    """
    lists = _LIST.findall(text)
    moves = [meant(word) for word in re.sub(r"[\s,'\"`]+", " ", lists[-1] if lists else text).split()]
    return tuple(move for move in moves if move) if moves and all(moves) else None
