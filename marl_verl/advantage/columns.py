"""Columns of a row table, and how they are read from row mappings: every value is checked, errors name the row."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.errors import MarlError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

FLAGS = ("padding", "invalid")
OPTIONAL: Mapping[str, object] = {**dict.fromkeys(("policy", "slot", "node", "parent")), **dict.fromkeys(FLAGS, False)}
"""Columns that a row may leave out, and what it then has."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Labels:
    """A column of names as integers, so that grouping never compares strings.

    Attributes:
        codes: [n], index into `names`; -1 where the row has none (the parent of a root).
        names: sorted, so that codes do not depend on the order of rows.
    """

    codes: IntArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str | None], names: tuple[str, ...] | None = None) -> Labels:
        """Codes for `values`; with `names`, codes into these (two columns that refer to the same things share them)."""
        names = distinct(values) if names is None else names
        code: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        code[None] = -1
        return cls(np.fromiter((code[value] for value in values), np.int64, len(values)), names)

    def value(self, row: int) -> str | None:
        """The name in one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]

    def take(self, rows: IntArray) -> Labels:
        return Labels(self.codes[rows], self.names)


def distinct(values: Sequence[str | None]) -> tuple[str, ...]:
    """The distinct names in a column, sorted."""
    return tuple(sorted({value for value in values if value is not None}))


def _typed(row: Mapping[str, Any], i: int, key: str, kind: type) -> Any:
    if key not in row and key not in OPTIONAL:
        raise MarlError(f"row {i} has no '{key}'")
    value = row.get(key, OPTIONAL.get(key))
    if value is None and OPTIONAL.get(key, ...) is None:
        return None
    value = value.item() if isinstance(value, np.generic) else value
    if kind is numbers.Integral and isinstance(value, int) and value >= 1 << 62:
        raise MarlError(f"row {i}: '{key}' is too large")
    if not isinstance(value, kind) or (kind is numbers.Integral and isinstance(value, bool)):
        raise MarlError(f"row {i}: '{key}' must be {_SHOWN[kind]}, got {value!r}")
    return value


_SHOWN = {str: "a name", numbers.Integral: "a whole number >= 0", bool: "true or false", Mapping: "a mapping"}


def cells(rows: Rows, key: str, kind: type) -> list[Any]:
    """A column as it is in the rows. MarlError naming the first row where it is missing or no `kind`."""
    return [_typed(row, i, key, kind) for i, row in enumerate(rows)]


def texts(rows: Rows, key: str) -> list[str | None]:
    """A column as text, whatever it is in the rows."""
    return [None if row.get(key) is None else str(row[key]) for row in rows]


def whole_numbers(rows: Rows, key: str) -> IntArray:
    values = np.array(cells(rows, key, numbers.Integral), dtype=np.int64)
    if values.min() < 0:
        i = int(np.argmin(values))
        raise MarlError(f"row {i}: '{key}' must be {_SHOWN[numbers.Integral]}, got {int(values[i])}")
    return values


def numbers_or_nan(rows: Rows, key: str) -> FloatArray:
    """[n] float64, NaN where a row has none."""
    values = [row.get(key) for row in rows]
    for i, value in enumerate(values):
        if value is None:
            continue
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
            raise MarlError(f"row {i}: '{key}' must be a finite number, got {value!r}")
    return np.array([math.nan if value is None else float(value) for value in values])


def rewards_of(rows: Rows) -> tuple[dict[str, FloatArray], dict[str, BoolArray]]:
    given: list[Mapping[str, Any]] = cells(rows, "rewards", Mapping)
    components = sorted({name for rewards in given for name in rewards})
    values = {name: np.zeros(len(rows)) for name in components}
    present = {name: np.zeros(len(rows), dtype=np.bool_) for name in components}
    for i, rewards in enumerate(given):
        for name, value in rewards.items():
            if not isinstance(value, numbers.Real) or isinstance(value, bool):
                raise MarlError(f"row {i}: reward '{name}' must be a number, got {value!r}")
            try:
                values[name][i], present[name][i] = float(value), True
            except OverflowError as error:
                raise MarlError(f"row {i}: reward '{name}' is too large") from error
    return values, present
