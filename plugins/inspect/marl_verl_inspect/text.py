"""Texts of the commands: tables, and values that are safe to print."""

from collections.abc import Sequence
from typing import Any

from marl_verl.episode.errors import short


def table(rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Columns as lines, below their titles: those named in `right` are right-aligned, empty ones are omitted."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [(">" if column[0] in right else "<", max(map(len, column))) for column in columns]
    return [
        "  ".join(f"{text:{side}{width}}" for text, (side, width) in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]


def count(number: int, noun: str) -> str:
    """E.g. "1 row" or "2 rows"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def line(text: str, width: int) -> str:
    """A text as one line of at most `width` characters."""
    return short(" ".join(text.split()), width)


def cell(value: Any) -> str:
    """A number with six digits, or a name with control characters escaped."""
    if isinstance(value, float):
        return f"{value + 0.0:.6g}"  # + 0.0: of a negative zero, zero
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value))
