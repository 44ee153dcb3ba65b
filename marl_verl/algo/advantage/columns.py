"""Columns of a row table: names as integers, group ids, and group means."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.errors import MarlError, shown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenArray = NDArray[np.object_]
"""[n] one array of float64 per row, with one number per response token."""


@dataclass(frozen=True)
class Labels:
    """A column of names as integers, so that grouping never compares strings.

    Attributes:
        codes: [n] index into `names`; -1 if the row has no name (the parent of a root).
        names: sorted, so that codes are independent of the order of rows.
    """

    codes: IntArray
    names: tuple[str, ...]

    @classmethod
    def of(cls, values: Sequence[str | None], others: Sequence[str | None] = ()) -> "Labels":
        """Codes for `values`. Pass the values of a related column as `others` so that both share `names`."""
        names = tuple(sorted({*values, *others} - {None}))  # type: ignore[type-var]
        code: dict[str | None, int] = {name: i for i, name in enumerate(names)} | {None: -1}
        return cls(np.fromiter(map(code.__getitem__, values), np.int64, len(values)), names)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: "Sequence[Labels]") -> "Labels":
        """The columns one after another."""
        # sorted runs: sorting them takes much less than for names in any order
        names = tuple(sorted(dict.fromkeys(chain.from_iterable(part.names for part in parts))))
        code = {name: i for i, name in enumerate(names)}
        codes = [np.array([*map(code.__getitem__, part.names), -1])[part.codes] for part in parts]  # [-1] is the last
        return cls(np.concatenate(codes), names)

    def value(self, row: int) -> str | None:
        """The name in a row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


def numbers_or(absent: float, values: Sequence[float | None]) -> FloatArray:
    """[n] float64, `absent` where a row has no value."""
    return np.array([absent if value is None else value for value in values], dtype=np.float64)


def rewards_of(rewards: Sequence[Mapping[str, float]]) -> tuple[dict[str, FloatArray], dict[str, BoolArray]]:
    """(component -> values, 0 where a row lacks it; component -> whether the row has it), [n] each."""
    names = sorted({name for names in set(map(tuple, rewards)) for name in names})
    columns = {name: [components.get(name) for components in rewards] for name in names}
    present = {name: np.array([value is not None for value in column]) for name, column in columns.items()}
    return {name: numbers_or(0.0, column) for name, column in columns.items()}, present


def computed_columns(columns: Sequence[Mapping[str, Any]]) -> tuple[dict[str, FloatArray], dict[str, TokenArray]]:
    """(column -> numbers [n], column -> numbers per token [n]) of the rows' `columns`; NaN where a row lacks one."""
    per_row: dict[str, FloatArray] = {}
    per_token: dict[str, TokenArray] = {}
    for name in sorted({name for names in set(map(tuple, columns)) for name in names}):
        values = [computed.get(name) for computed in columns]
        if any(isinstance(value, Sequence) for value in values):
            per_token[name] = token_arrays([[math.nan] if value is None else value for value in values], name)
        else:
            per_row[name] = numbers_or(math.nan, values)
    return per_row, per_token


def numbers_of(values: Any, n: int, label: str, finite: bool = False) -> FloatArray:
    """[n] the numbers that the part `label` computed. MarlError for anything else, which NumPy might broadcast."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MarlError(f"{label} must return an array of {n} numbers, got {shown(values)}") from error
    if numbers.shape != (n,):
        raise MarlError(f"{label} must return an array of {n} numbers, got shape {numbers.shape}: {shown(values)}")
    if finite and (place := first_true(~np.isfinite(numbers))) is not None:
        raise MarlError(f"{label} returned {numbers[place]} as value {place} of {n}. Return finite numbers.")
    return numbers


def token_arrays(values: Sequence[Any], label: str) -> TokenArray:
    """[n] the sequences of numbers as arrays. MarlError with the first row that has no sequence of numbers."""
    arrays = np.empty(len(values), dtype=np.object_)
    for row, value in enumerate(values):
        try:
            arrays[row] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError):
            arrays[row] = np.array(math.nan)
        if arrays[row].ndim != 1:
            raise MarlError(f"row {row}: {label} must be a list of numbers, one per token, got {shown(value)}")
    return arrays


def first_true(where: BoolArray) -> int | None:
    """The first true index, or None."""
    return int(np.argmax(where)) if where.any() else None


def combine(columns: Sequence[IntArray], n: int) -> IntArray:
    """[n] dense ids of the distinct tuples in integer columns [n], in lexicographic order."""
    ids = np.zeros(n, dtype=np.int64)
    for column in columns:
        values = dense(column)
        ids = dense(ids * (int(values.max()) + 1) + values)
    return ids


def dense(values: IntArray) -> IntArray:
    """Integers replaced by 0..k-1 in the order of their values; linear in n if their range is not much larger."""
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > 4 * len(values) + 1024:
        return np.unique(values, return_inverse=True)[1].reshape(-1)
    seen = np.zeros(span, dtype=np.int64)
    seen[values - low] = 1
    return (np.cumsum(seen) - 1)[values - low]


def extremes(value: FloatArray, group: IntArray) -> tuple[FloatArray, FloatArray]:
    """The lowest and the highest `value` of each group, [G] each."""
    low, high = np.full(int(group.max()) + 1, np.inf), np.full(int(group.max()) + 1, -np.inf)
    np.minimum.at(low, group, value)
    np.maximum.at(high, group, value)
    return low, high


def group_mean(value: FloatArray, group: IntArray) -> FloatArray:
    """[G] mean of `value` [S] over each group.

    mean = m + mean(value - m) with m the group's minimum. The mean of a constant group is then exact and its advantage
    exactly 0, instead of a rounding error divided by a small std.
    """
    low, _ = extremes(value, group)
    return low + np.bincount(group, weights=value - low[group]) / np.bincount(group)
