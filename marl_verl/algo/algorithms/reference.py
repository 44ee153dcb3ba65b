"""What the straight-line reference functions of the presets share, which are beside each in `REFERENCES`: plain rows
(`RowTable.from_rows`) -> advantages, the equation as code, without parts. A test compares both on random rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

PlainRows = Sequence[Mapping[str, Any]]
Reference = Callable[..., list[float]]


def rewards_of(rows: PlainRows) -> list[float]:
    """The sum of the components of each row."""
    return [sum(row["rewards"].values()) for row in rows]


def in_groups(
    values: Sequence[float], rows: PlainRows, columns: Sequence[str], eps: float = 1e-6, raw: bool = False
) -> list[float]:
    """(value - mean) / (std + eps) over the rows with the same columns, std unbiased. A group of one: 0, or `raw` value
    / (1 + eps)."""
    keys = [tuple(row.get(column) for column in columns) for row in rows]
    groups: dict[Any, list[float]] = {}
    for key, value in zip(keys, values, strict=True):
        groups.setdefault(key, []).append(value)
    mean = {key: 0.0 if raw and len(group) == 1 else np.mean(group) for key, group in groups.items()}
    std = {key: np.std(group, ddof=1) if len(group) > 1 else 1.0 for key, group in groups.items()}
    return [float((value - mean[key]) / (std[key] + eps)) for key, value in zip(keys, values, strict=True)]
