"""The row table: all turns of a batch in columns, with full identity. What every advantage sees."""

from __future__ import annotations

import difflib
import functools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.advantage.tree import Tree
from marl_verl.errors import MarlError, unknown

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

LABELS = ("uid", "agent", "policy", "slot", "node", "parent")  # columns of names
COUNTS = ("session", "index", "turn", "length")  # columns of whole numbers
FLAGS = ("padding", "invalid")
OPTIONAL: Mapping[str, object] = {
    "policy": None,
    "slot": None,
    "node": None,
    "parent": None,
    "padding": False,
    "invalid": False,
}
COLUMNS = (*LABELS, *COUNTS, "rewards", *FLAGS, "value")


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
        names = sorted_names(values) if names is None else names
        code: dict[str | None, int] = {name: i for i, name in enumerate(names)}
        code[None] = -1
        return cls(np.fromiter((code[value] for value in values), np.int64, len(values)), names)

    def value(self, row: int) -> str | None:
        """The name in one row."""
        code = int(self.codes[row])
        return None if code < 0 else self.names[code]

    def take(self, rows: IntArray) -> Labels:
        return Labels(self.codes[rows], self.names)


@dataclass(frozen=True)
class RowTable:
    """n rows, one per turn.

    Attributes:
        uid: the task instance; the same for all sessions sampled for it.
        session: [n] which of the episodes sampled for the task.
        index: [n] the turn's place in its episode, over all agents; (uid, session, index) names a row.
        turn: [n] the agent's n-th act (within its lane).
        agent, policy: who acted, and the model behind it (policy may be absent).
        slot: which of the agent's acts it is, by number or by the name that the workflow gave it (may be absent).
        node, parent: place in a sampled tree, unique within a uid; the two share their `names`; a root's parent is
            none.
        rewards: component -> [n] float64, 0 where the row does not have it.
        present: component -> [n] bool, whether the row has it.
        length: [n] response tokens.
        padding: [n] bool; rows that only fill a batch. They enter no statistic.
        invalid: [n] bool; acts that the workflow could not use (`team.invalid`).
        values: [n] what a critic expected of the state that the agent faced, before it acted; NaN where there is none.
        extra: further columns of names that rows carried, e.g. `obs`; usable as group keys.
        own: reward components that some part reads by itself: the sum of all components leaves them out.
    """

    uid: Labels
    session: IntArray
    index: IntArray
    turn: IntArray
    agent: Labels
    policy: Labels
    slot: Labels
    node: Labels
    parent: Labels
    rewards: Mapping[str, FloatArray]
    present: Mapping[str, BoolArray]
    length: IntArray
    padding: BoolArray
    invalid: BoolArray
    values: FloatArray
    extra: Mapping[str, Labels]
    own: frozenset[str] = frozenset()

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> RowTable:
        """A table from one mapping per row, as in a JSON file of rows.

        Needed keys: uid, session, index, turn, agent, rewards (component -> number), length. Optional: policy, slot,
        node, parent, padding, invalid, value (a number). Any other key becomes a column of names.

        Raises:
            MarlError: no rows, a key that is missing or has the wrong type, or two rows with the same (uid, session,
                index).
        """
        if not rows:
            raise MarlError("there are no rows: an advantage needs at least one")
        labels = {name: _names(rows, name) for name in LABELS}
        tree = sorted_names([*labels["node"], *labels["parent"]])
        counts = {name: _whole_numbers(rows, name) for name in COUNTS}
        rewards, present = _rewards(rows)
        extra = sorted({key for row in rows for key in row} - set(COLUMNS))
        for key in extra:
            if close := difflib.get_close_matches(str(key), FLAGS, n=1, cutoff=0.8):
                raise MarlError(f"unknown column '{key}': did you mean '{close[0]}'?")
        table = cls(
            uid=Labels.of(labels["uid"]),
            agent=Labels.of(labels["agent"]),
            policy=Labels.of(labels["policy"]),
            slot=Labels.of(labels["slot"]),
            node=Labels.of(labels["node"], tree),
            parent=Labels.of(labels["parent"], tree),
            rewards=rewards,
            present=present,
            padding=_flag(rows, "padding"),
            invalid=_flag(rows, "invalid"),
            values=_values(rows),
            extra={key: Labels.of([None if row.get(key) is None else str(row[key]) for row in rows]) for key in extra},
            session=counts["session"],
            index=counts["index"],
            turn=counts["turn"],
            length=counts["length"],
        )
        table.order()
        return table

    def __len__(self) -> int:
        return len(self.session)

    def key(self, row: int) -> str:
        """The row's name, "{uid}_{session}_{index}", as in verl's TransferQueue."""
        return f"{self.uid.value(row)}_{self.session[row]}_{self.index[row]}"

    def codes(self, column: str) -> IntArray:
        """A column as integers >= -1, for grouping. MarlError with the nearest name if there is no such column."""
        if column in LABELS:
            labels: Labels = getattr(self, column)
            return labels.codes
        if column in COUNTS:
            counts: IntArray = getattr(self, column)
            return counts
        if column in self.extra:
            return self.extra[column].codes
        raise unknown("column", column, [*LABELS, *COUNTS, *self.extra])

    def value(self, column: str, row: int) -> str | int | None:
        """What one row has in a column, as the user knows it."""
        codes = self.codes(column)
        if column in COUNTS:
            return int(codes[row])
        labels: Labels = self.extra[column] if column in self.extra else getattr(self, column)
        return labels.value(row)

    def component(self, name: str) -> FloatArray:
        """A reward component that every row has, [n]. MarlError with the nearest name, or the first row without it."""
        present = self.present.get(name)
        if present is None or not present.any():
            raise unknown("reward component", name, [c for c, there in self.present.items() if there.any()])
        if not present.all():
            raise MarlError(f"row '{self.key(int(np.argmin(present)))}' lacks reward '{name}'")
        return self.rewards[name]

    def with_component(self, name: str, values: FloatArray, present: BoolArray | None = None) -> RowTable:
        """The table with one more reward component. MarlError if rows have one of that name already."""
        if name in self.present and self.present[name].any():
            row = int(np.argmax(self.present[name]))
            raise MarlError(f"row '{self.key(row)}' has a reward '{name}' already, which was to be computed")
        there = np.ones(len(self), dtype=np.bool_) if present is None else present
        return replace(self, rewards={**self.rewards, name: values}, present={**self.present, name: there})

    def setting_aside(self, names: Iterable[str]) -> RowTable:
        """The table where the sum of all components leaves these out."""
        return replace(self, own=self.own | frozenset(names))

    @functools.cached_property
    def tree(self) -> Tree:
        """The tree that `node` and `parent` make. MarlError as `Tree.of`."""
        return Tree.of(self)

    def order(self) -> IntArray:
        """The rows that are not padding, sorted by (uid, session, index): reductions in this order give the same bits
        however the batch was shuffled. MarlError if two rows have the same key."""
        rows = np.flatnonzero(~self.padding)
        keys = self._rank(rows)
        if not (keys[1:] > keys[:-1]).all():  # a trainer's batch is in order already
            by_key = np.argsort(keys, kind="stable")
            rows, keys = rows[by_key], keys[by_key]
        same = keys[1:] == keys[:-1]
        if same.any():
            raise MarlError(f"two rows have the key '{self.key(int(rows[int(np.argmax(same))]))}'")
        return rows

    def _rank(self, rows: IntArray) -> IntArray:
        """[n] one number per row, in the order of (uid, session, index); equal exactly for equal keys."""
        rank = np.zeros(len(rows), dtype=np.int64)
        for column in (self.uid.codes[rows], self.session[rows], self.index[rows]):
            if not len(rows):
                return rank
            span = int(column.max()) + 1
            if int(rank.max()) >= (1 << 62) // span:  # numbers this large must be counted afresh
                rank = np.unique(rank, return_inverse=True)[1].reshape(-1)
                column = np.unique(column, return_inverse=True)[1].reshape(-1)
                span = int(column.max()) + 1
            rank = rank * span + column
        return rank

    def take(self, rows: IntArray) -> RowTable:
        """The table of these rows, in this order."""
        return RowTable(
            uid=self.uid.take(rows),
            session=self.session[rows],
            index=self.index[rows],
            turn=self.turn[rows],
            agent=self.agent.take(rows),
            policy=self.policy.take(rows),
            slot=self.slot.take(rows),
            node=self.node.take(rows),
            parent=self.parent.take(rows),
            rewards={name: values[rows] for name, values in self.rewards.items()},
            present={name: values[rows] for name, values in self.present.items()},
            length=self.length[rows],
            padding=self.padding[rows],
            invalid=self.invalid[rows],
            values=self.values[rows],
            own=self.own,
            extra={name: labels.take(rows) for name, labels in self.extra.items()},
        )

    def to_rows(self) -> list[dict[str, Any]]:
        """One JSON-able mapping per row; `from_rows` gives the table back."""
        names = [*LABELS, *COUNTS, *self.extra]
        rows: list[dict[str, Any]] = []
        for i in range(len(self)):
            row: dict[str, Any] = {name: self.value(name, i) for name in names}
            row["rewards"] = {c: float(values[i]) for c, values in self.rewards.items() if self.present[c][i]}
            if not np.isnan(self.values[i]):
                row["value"] = float(self.values[i])
            rows.append({**row, "padding": bool(self.padding[i]), "invalid": bool(self.invalid[i])})
        return rows


def check_shared(table: RowTable, values: FloatArray, ids: IntArray, what: str) -> None:
    """MarlError unless rows with the same id [n] have the same value [n]. `what` says what they share."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    shared = first[inverse.reshape(-1)]
    different = values != values[shared]
    if different.any():
        row = int(np.argmax(different))
        other = int(shared[row])
        raise MarlError(
            f"rows '{table.key(other)}' and '{table.key(row)}' are {what} and have {values[other]:g} and "
            f"{values[row]:g}: it is the same for all, and counts once"
        )


def sorted_names(values: Sequence[str | None]) -> tuple[str, ...]:
    """The distinct names in a column."""
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


def _flag(rows: Sequence[Mapping[str, Any]], key: str) -> BoolArray:
    return np.array([_typed(row, i, key, bool) for i, row in enumerate(rows)], dtype=np.bool_)


def _names(rows: Sequence[Mapping[str, Any]], key: str) -> list[str | None]:
    return [_typed(row, i, key, str) for i, row in enumerate(rows)]


def _whole_numbers(rows: Sequence[Mapping[str, Any]], key: str) -> IntArray:
    values = np.array([_typed(row, i, key, numbers.Integral) for i, row in enumerate(rows)], dtype=np.int64)
    if values.min() < 0:
        i = int(np.argmin(values))
        raise MarlError(f"row {i}: '{key}' must be {_SHOWN[numbers.Integral]}, got {int(values[i])}")
    return values


def _values(rows: Sequence[Mapping[str, Any]]) -> FloatArray:
    """[n] float64, NaN where a row has none."""
    values = np.full(len(rows), np.nan)
    for i, row in enumerate(rows):
        value = row.get("value")
        if value is None:
            continue
        if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
            raise MarlError(f"row {i}: 'value' must be a finite number, got {value!r}")
        values[i] = float(value)
    return values


def _rewards(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, FloatArray], dict[str, BoolArray]]:
    given: list[Mapping[str, Any]] = [_typed(row, i, "rewards", Mapping) for i, row in enumerate(rows)]
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
