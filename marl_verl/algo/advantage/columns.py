"""Columns of a row table: conversion from row mappings, group ids, and group means."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.errors import MarlError, shown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenArray = NDArray[np.object_]
"""[n] one array of float64 per row, with one number per response token."""

FLAGS = ("padding", "invalid", "untrained")
OPTIONAL: Mapping[str, object] = {**dict.fromkeys(("policy", "slot", "node", "parent")), **dict.fromkeys(FLAGS, False)}
"""Optional columns and their defaults."""

Rows = Sequence[Mapping[str, Any]]
CACHED = 1000
"""Rows of which all columns are read before those of further rows: a processor's cache holds them."""


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
    def of(cls, values: Sequence[str | None], others: Sequence[str | None] = ()) -> Labels:
        """Codes for `values`. Pass the values of a related column as `others` so that both share `names`."""
        names = tuple(sorted({*values, *others} - {None}))  # type: ignore[type-var]
        code: dict[str | None, int] = {name: i for i, name in enumerate(names)} | {None: -1}
        return cls(np.fromiter(map(code.__getitem__, values), np.int64, len(values)), names)  # type: ignore[arg-type]

    @classmethod
    def joined(cls, parts: Sequence[Labels]) -> Labels:
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


_SHOWN = {str: "a name", numbers.Integral: "a whole number >= 0", bool: "true or false", Mapping: "a mapping"}


_USUAL: Mapping[type, type] = {str: str, numbers.Integral: int, bool: bool, Mapping: dict}


def by_column(rows: Rows, keys: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Key -> its value in each row; without the keys that a row lacks."""
    found: dict[str, list[Any]] = {key: [] for key in keys}
    for start in range(0, len(rows), CACHED):
        part = rows[start : start + CACHED]
        for key in list(found):
            try:
                found[key].extend(map(itemgetter(key), part))
            except KeyError:
                del found[key]
    return dict(found)


def cells(rows: Rows, key: str, kind: type, values: Sequence[Any] | None = None) -> Sequence[Any]:
    """The values of a column. MarlError with the first row where it is missing or not a `kind`.

    Args:
        values: the column, if all rows have it: values of the usual types are not checked one by one.
    """
    if values is None and key in OPTIONAL and not any(key in row for row in rows):
        return [OPTIONAL[key]] * len(rows)
    found: list[Any] = []
    whole, usual = (
        kind is numbers.Integral,
        {_USUAL[kind]} | ({type(None)} if OPTIONAL.get(key, ...) is None else set()),
    )
    if values and set(map(type, values)) <= usual and not (whole and not 0 <= min(values) <= max(values) < 1 << 62):
        return values
    for i, row in enumerate(rows):
        if key not in row and key not in OPTIONAL:
            raise MarlError(f"row {i} has no '{key}'")
        value = row.get(key, OPTIONAL.get(key))
        value = value.item() if isinstance(value, np.generic) else value
        if whole and isinstance(value, int) and value >= 1 << 62:
            raise MarlError(f"row {i}: '{key}' is too large")
        wrong = whole and isinstance(value, numbers.Real) and (isinstance(value, bool) or value < 0)
        good = isinstance(value, kind) and not wrong
        if not good and (value is not None or OPTIONAL.get(key, ...) is not None):
            raise MarlError(f"row {i}: '{key}' must be {_SHOWN[kind]}, got {value!r}")
        found.append(value)
    return found


def texts(rows: Rows, key: str, values: Sequence[Any] | None = None) -> Sequence[str | None]:
    """The values of a further column as texts; None where a row has no value."""
    if values and set(map(type, values)) == {str}:
        return values
    return [None if row.get(key) is None else str(row[key]) for row in rows]


def numbers_or_nan(rows: Rows, key: str, column: Sequence[Any] | None = None) -> FloatArray:
    """[n] float64, NaN where a row has no value. `column`: the values, if all rows have the key."""
    values = [row.get(key) for row in rows] if column is None else column
    kinds = set(map(type, values))
    if kinds <= {type(None)}:
        return np.full(len(values), math.nan)
    if kinds == {float} and np.isfinite(found := np.array(values)).all():
        return found
    for i, value in enumerate(values):
        number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if not (number or value is None):
            raise MarlError(f"row {i}: '{key}' must be a finite number, got {value!r}")
    return np.array([math.nan if value is None else float(value) for value in values])


def numbers_of(values: Any, n: int, what: str, finite: bool = False) -> FloatArray:
    """[n] the numbers that the part `what` computed. MarlError for anything else, which NumPy might broadcast."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MarlError(f"{what} must return an array of {n} numbers, got {shown(values)}") from error
    if found.shape != (n,):
        raise MarlError(f"{what} must return an array of {n} numbers, got shape {found.shape}: {shown(values)}")
    if finite and (place := first_true(~np.isfinite(found))) is not None:
        raise MarlError(f"{what} returned {found[place]} as value {place} of {n}. Return finite numbers.")
    return found


def rewards_of(rows: Rows, column: Sequence[Any] | None = None) -> tuple[dict[str, FloatArray], dict[str, BoolArray]]:
    """(component -> values, 0 where a row lacks it; component -> whether the row has it), [n] each."""
    given: Sequence[Mapping[str, Any]] = cells(rows, "rewards", Mapping, column)
    components = sorted({name for names in set(map(tuple, given)) for name in names})
    each = {name: [rewards.get(name) for rewards in given] for name in components}
    if all(set(map(type, own)) <= {float, type(None)} for own in each.values()):
        has = {name: np.array([value is not None for value in own]) for name, own in each.items()}
        return {name: _filled(own) for name, own in each.items()}, has
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


def _filled(values: Sequence[float | None]) -> FloatArray:
    return np.array([0.0 if value is None else value for value in values], dtype=np.float64)


def computed_columns(
    rows: Rows, column: Sequence[Any] | None = None
) -> tuple[dict[str, FloatArray], dict[str, TokenArray]]:
    """(column -> numbers [n], column -> numbers per token [n]) of the rows' `columns`; NaN where a row lacks one."""
    column = [row.get("columns") for row in rows] if column is None else column
    if not any(column):
        return {}, {}
    given = [each or {} for each in column]
    per_row: dict[str, FloatArray] = {}
    per_token: dict[str, TokenArray] = {}
    for name in sorted({name for each in given for name in each}):
        values = [each.get(name) for each in given]
        if any(isinstance(value, Sequence) for value in values):
            per_token[name] = token_arrays([[math.nan] if value is None else value for value in values], name)
        else:
            per_row[name] = numbers_or_nan([{name: value} for value in values], name)
    return per_row, per_token


def token_arrays(values: Sequence[Any], what: str) -> TokenArray:
    """[n] the sequences of numbers as arrays. MarlError with the first row that has no sequence of numbers."""
    found = np.empty(len(values), dtype=np.object_)
    for row, value in enumerate(values):
        try:
            found[row] = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise MarlError(f"row {row}: {what} must be a list of numbers, got {shown(value)}") from error
        if found[row].ndim != 1:
            raise MarlError(f"row {row}: {what} must be a list of numbers, one per token, got {shown(value)}")
    return found


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
