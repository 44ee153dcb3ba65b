"""Concatenation of row tables: each rollout worker makes the columns of its own rows, and the trainer joins them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from marl_verl.algo.advantage.columns import Labels, token_arrays
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.errors import MarlError

ABSENT: Mapping[str, Callable[[int], Any]] = {
    "rewards": np.zeros,
    "present": lambda n: np.zeros(n, dtype=np.bool_),
    "numbers": lambda n: np.full(n, math.nan),
    "tokens": lambda n: token_arrays([[math.nan]] * n, "an absent column"),
    "extra": lambda n: Labels(np.full(n, -1), ()),
}
"""A column of n rows for a table that lacks a name which another table has."""


def concat(tables: Sequence[RowTable]) -> RowTable:
    """The rows of tables sorted by (uid, session, index): equal to `RowTable.from_rows` of all of them in this order.

    Raises:
        MarlError: no tables; two rows with the same key; or a computed column that has a number per row in one table
            and per token in another.
    """
    if not tables:
        raise MarlError("there are no rows. An advantage needs at least one.")
    sizes = [len(table) for table in tables]
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(RowTable)):
        parts = [getattr(table, name) for table in tables]
        if name in ABSENT:
            names = sorted({key for part in parts for key in part})
            filled = [
                {**{key: ABSENT[name](size) for key in names if key not in part}, **part}
                for part, size in zip(parts, sizes, strict=True)
            ]
            columns[name] = {key: _joined([part[key] for part in filled]) for key in names}
        else:
            columns[name] = _joined(parts)
    if both := columns["numbers"].keys() & columns["tokens"].keys():
        message = f"column '{min(both)}' has one number in some rows and a list of numbers in others"
        raise MarlError(f"{message}. Return one of them for every turn.")
    table = RowTable(**columns)
    return table.take(table.order())


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], bool):
        return all(parts)
    if isinstance(parts[0], frozenset):
        return frozenset().union(*parts)
    return Labels.joined(parts) if isinstance(parts[0], Labels) else np.concatenate(parts)
