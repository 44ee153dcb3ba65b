"""What the straight-line reference functions of the presets share.

Each preset has one beside it, in `REFERENCES` of its module: plain rows (`RowTable.from_rows`) -> advantages, the
equation as code, without parts. A test compares both on random rows.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PlainRows = Sequence[Mapping[str, Any]]
Reference = Callable[..., list[float]]


def rewards_of(rows: PlainRows) -> list[float]:
    """The sum of the components of each row."""
    return [sum(row["rewards"].values()) for row in rows]


def normalised(value: float, group: Sequence[float], eps: float = 1e-6, alone: float = 0.0) -> float:
    """(value - mean) / (std + eps) over the group, std unbiased; `alone` for a group of one."""
    return alone if len(group) == 1 else float((value - np.mean(group)) / (np.std(group, ddof=1) + eps))


def in_groups(
    values: Sequence[float], rows: PlainRows, columns: Sequence[str], eps: float = 1e-6, raw: bool = False
) -> list[float]:
    """Each value, normalised over the rows with the same columns. A group of one: 0, or `raw` value / (1 + eps)."""
    keys = [tuple(row.get(column) for column in columns) for row in rows]
    groups: dict[Any, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    alone = 1 / (1 + eps) if raw else 0.0
    return [normalised(value, groups[key], eps, alone * value) for key, value in zip(keys, values, strict=True)]
