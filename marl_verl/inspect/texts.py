"""Text formatting: tables, counts and values."""

from collections.abc import Sequence
from typing import Any

from marl_verl.episode.errors import short

LEFT = ("row", "key", "agent", "group", "player", "", "what")  # left-aligned columns; others are numbers


def columns(names: Sequence[str], cells: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """A table as lines, cut at `width`: text left-aligned, numbers right-aligned, no trailing spaces."""
    sides = [">" if name not in LEFT else "<" for name in names]
    sizes = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    rows = (zip(row, sides, sizes, strict=True) for row in [names, *cells])
    lines = ["  ".join(f"{text:{side}{size}}" for text, side, size in row).rstrip() for row in rows]
    return [line if width is None or len(line) <= width else line[: max(width - 1, 0)] + "…" for line in lines]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Left-aligned columns; columns that are empty below their title are omitted."""
    filled = [column for column in range(len(rows[0])) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in filled}
    return ["  ".join(f"{row[column]:<{widths[column]}}" for column in filled).rstrip() for row in rows]


def indented(text: str, spaces: int) -> list[str]:
    """The lines of a text, indented."""
    return [f"{' ' * spaces}{line}".rstrip() for line in text.split("\n")]


def line(text: str, width: int) -> str:
    """A text as one line of at most `width` characters."""
    return short(" ".join(text.split()), width)


def count(number: int, noun: str) -> str:
    """E.g. "1 row" or "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def cell(value: Any) -> str:
    """A number with six digits, or a name with control characters escaped."""
    if isinstance(value, float):
        return f"{value:.6g}".replace("-0", "0") if value == 0 else f"{value:.6g}"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
