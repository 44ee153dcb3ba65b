"""Columns of a row table as integers: names, group ids and means over groups, and the tree of `node` and `parent`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError, shown, user_error

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
TokenArray = NDArray[np.object_]
"""[n] one array of float64 per row, with one number per response token."""


def read_only(*values: Any) -> None:
    """Make arrays, also in mappings, read-only: parts share them, and NumPy raises in one that would change them."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        elif isinstance(value, Mapping):
            read_only(*value.values())


@dataclass(frozen=True)
class Labels:
    """A column of names as integers, so that grouping never compares strings.

    Attributes:
        codes: [n] index into `names`; -1 if the row has no name (the parent of a root).
        names: sorted, so that codes are independent of the order of rows.
    """

    codes: IntArray
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        read_only(self.codes)

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
        read_only(arrays[row])
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


@dataclass(frozen=True)
class Tree:
    """The nodes of a table, numbered 0..count-1 over all tasks; a row without a node forms a separate node."""

    row: IntArray  # [p] with `node` pairs (row, node): one pair for most rows, several for a crossed row
    node: IntArray
    parent: IntArray  # [n] the row's parent node, -1 at the root
    count: int
    depth: IntArray  # [count] 0 for children of the root

    @classmethod
    def of(cls, uid: Labels, nodes: Labels, parents: Labels, key: Callable[[int], str]) -> "Tree":
        """Create the tree of these columns; `key` gives the key of a row, for errors.

        MarlError: a parent that is not a node of the task, a node with two parents, or a cycle.
        """
        row, code, parent_code, named = _places(nodes, parents)
        # rows without a node are numbered after the named nodes of all tasks
        node_key = np.where(code >= 0, uid.codes[row] * named + code, len(uid.names) * named + row)
        inner = np.flatnonzero(parent_code >= 0)
        number = dense(np.append(node_key, uid.codes[inner] * named + parent_code[inner]))
        node, above_of = number[: len(row)], number[len(row) :]
        missing = np.bincount(node, minlength=int(number.max()) + 1) == 0
        if (lost := first_true(missing[above_of])) is not None:
            at = int(inner[lost])
            where = f"which is not a node of task '{uid.value(at)}'"
            raise MarlError(f"row '{key(at)}' has parent '{parents.value(at)}', {where}")
        parent = np.full(len(uid.codes), -1, dtype=np.int64)
        parent[inner] = above_of
        above = np.full(len(missing), -1, dtype=np.int64)
        above[node] = parent[row]
        depth, endless = _depth(above)
        if (torn := first_true((above[node] != parent[row]) | endless[node])) is not None:
            at = int(row[torn])
            where = f"node '{nodes.value(at)}' of task '{uid.value(at)}'"
            raise MarlError(f"{where} has more than one parent, or is its own ancestor (row '{key(at)}')")
        return cls(row, node, parent, len(above), depth)

    @property
    def crossed(self) -> bool:
        """Whether there are rows at several nodes."""
        return len(self.row) > len(self.parent)

    def sum_over_nodes(self, value: FloatArray, rows: IntArray) -> FloatArray:
        """[len(rows)] sum of `value` [count] over the nodes of each of `rows`."""
        if not self.crossed:
            return value[self.node[rows]]
        total: FloatArray = np.bincount(self.row, weights=value[self.node]).astype(np.float64)
        return total[rows]

    def node_mean(self, value: FloatArray) -> FloatArray:
        """[count] mean of `value` [n] over the rows at each node."""
        return np.bincount(self.node, weights=value[self.row]) / np.bincount(self.node)


def deepest_first(depth: IntArray) -> list[IntArray]:
    """The indices of each depth, the deepest first."""
    order = np.argsort(-depth, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)


def _places(nodes: Labels, parents: Labels) -> tuple[IntArray, IntArray, IntArray, int]:
    """(row of each pair, node code of each pair, parent codes [n], number of codes); joined names are split."""
    codes, names = nodes.codes, nodes.names
    # a name that is a parent, or has an empty part, is a single node
    alone = {-1, *np.unique(parents.codes).tolist()}
    split = {i for i in set(np.unique(codes).tolist()) - alone if JOIN in names[i] and all(names[i].split(JOIN))}
    if not split:
        return np.arange(len(codes), dtype=np.int64), codes, parents.codes, len(names)
    parts = [list(dict.fromkeys(name.split(JOIN))) if i in split else [name] for i, name in enumerate(names)]
    number = {part: i for i, part in enumerate(sorted({part for joined in parts for part in joined}))}
    places = [[number[part] for part in joined] for joined in parts] + [[-1]]  # the last one: for rows without a node
    pairs = [(row, part) for row, code in enumerate(codes.tolist()) for part in places[code]]
    row, code = np.array(pairs, dtype=np.int64).T
    parent = np.array([*(number.get(name, -1) for name in names), -1], dtype=np.int64)[parents.codes]
    return row, code, parent, len(number)


def _depth(above: IntArray) -> tuple[IntArray, BoolArray]:
    """[N] distance from the root, given each node's parent; and [N] bool, nodes on or below a cycle."""
    depth, ancestor = np.zeros(len(above), dtype=np.int64), above.copy()
    for _ in above:
        below = np.flatnonzero(ancestor >= 0)
        if not len(below):
            break
        depth[below] += 1
        ancestor[below] = above[ancestor[below]]
    return depth, ancestor >= 0
