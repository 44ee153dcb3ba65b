"""Columns of a row table: names as integers, group ids, and group means."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.errors import MarlError, shown, user_error

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
        """Codes for `values`. Columns of the same names have those of all as `others`."""
        names = tuple(sorted({*values, *others} - {None}))  # type: ignore[type-var]
        code: dict[str | None, int] = {name: i for i, name in enumerate(names)} | {None: -1}
        return cls(np.fromiter(map(code.__getitem__, values), np.int64, len(values)), names)  # type: ignore[arg-type]

    def value(self, row: int) -> str | None:
        """The name in a row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]


def numbers_or(absent: float, values: Sequence[float | None]) -> FloatArray:
    """[n] float64, `absent` where a row has no value."""
    return np.array([absent if value is None else value for value in values], dtype=np.float64)


def by_name(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Name -> its value in each of n mappings, None where one lacks it; names are sorted."""
    names = sorted({name for names in set(map(tuple, mappings)) for name in names})
    return {name: [mapping.get(name) for mapping in mappings] for name in names}


def numbers_of(values: Any, n: int, label: str) -> FloatArray:
    """[n] the numbers that the part `label` computed. MarlError for anything else, which NumPy might broadcast."""
    with user_error(f"{label} must return an array of {n} numbers", TypeError, ValueError):
        numbers = np.asarray(values, dtype=np.float64)
    if numbers.shape != (n,):
        raise MarlError(f"{label} must return an array of {n} numbers, got shape {numbers.shape}: {shown(values)}")
    return numbers


def token_arrays(values: Sequence[Any]) -> TokenArray:
    """[n] sequences of numbers as arrays; empty for None."""
    arrays = np.empty(len(values), dtype=np.object_)
    for row, numbers in enumerate(values):
        arrays[row] = np.array([] if numbers is None else numbers, dtype=np.float64, ndmin=1)
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


def extremes(value: FloatArray | IntArray, group: IntArray) -> tuple[FloatArray, FloatArray]:
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
