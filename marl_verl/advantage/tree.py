"""The tree that `node` and `parent` make: who is whose parent, and in which order to go through it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from marl_verl.errors import MarlError

if TYPE_CHECKING:
    from marl_verl.advantage.rows import FloatArray, IntArray, RowTable

JOIN = "+"
"""A row that takes part in several joint nodes (MAGRPO, crossed) names them all: "n0+n1"."""


@dataclass(frozen=True)
class Tree:
    """The nodes of a table.

    Attributes:
        row, node: [p] which row is at which node: one pair for most rows, several for a crossed one. Nodes are numbered
            0..count-1 over all tasks; a row without a node is a node of its own.
        parent: [n] the row's parent node, -1 at the root.
        count: how many nodes there are.
        depth: [count] 0 for children of the root.
    """

    row: IntArray
    node: IntArray
    parent: IntArray
    count: int
    depth: IntArray

    @classmethod
    def of(cls, table: RowTable) -> Tree:
        """Read the tree off a table.

        Raises:
            MarlError: a parent that is no node of the task, or nodes that are their own ancestors.
        """
        row, code, parent_code, named = _places(table)
        tasks = len(table.uid.names)
        # rows without a node are numbered behind the named nodes of all tasks
        own = np.where(code >= 0, table.uid.codes[row] * named + code, tasks * named + row)
        inner = np.flatnonzero(parent_code >= 0)
        node, found, count = _numbered(own, table.uid.codes[inner] * named + parent_code[inner])
        if (found < 0).any():
            at = int(inner[int(np.argmax(found < 0))])
            raise MarlError(
                f"row '{table.key(at)}' has parent '{table.parent.value(at)}', which is no node of task "
                f"'{table.uid.value(at)}'"
            )
        parent = np.full(len(table), -1, dtype=np.int64)
        parent[inner] = found
        above = np.full(count, -1, dtype=np.int64)
        above[node] = parent[row]
        return cls(row, node, parent, count, _depth(above, node, row, table))

    def levels_upwards(self) -> Iterator[IntArray]:
        """The rows of each depth, the deepest first."""
        depth = np.zeros(len(self.parent), dtype=np.int64)
        depth[self.row] = self.depth[self.node]
        order = np.argsort(-depth, kind="stable")
        yield from np.split(order, np.flatnonzero(np.diff(depth[order])) + 1)

    def sum_over_nodes(self, value: FloatArray) -> FloatArray:
        """[n] sum of `value` [count] over the nodes that a row is at."""
        total = np.bincount(self.row, weights=value[self.node], minlength=len(self.parent))
        return np.asarray(total, dtype=np.float64)

    def node_mean(self, value: FloatArray) -> FloatArray:
        """[count] mean of `value` [n] over the rows at each node: what they share counts once."""
        total = np.bincount(self.node, weights=value[self.row], minlength=self.count)
        return np.asarray(total / np.bincount(self.node, minlength=self.count), dtype=np.float64)


def _places(table: RowTable) -> tuple[IntArray, IntArray, IntArray, int]:
    """(row, node code) pairs, the parents' codes [n], and how many codes there are; joined names are taken apart."""
    rows, codes, names = np.arange(len(table), dtype=np.int64), table.node.codes, table.node.names
    if not any(JOIN in name for name in names):
        return rows, codes, table.parent.codes, len(names)
    parts = [name.split(JOIN) for name in names]
    number = {part: i for i, part in enumerate(sorted({part for each in parts for part in each}))}
    first = np.cumsum([0, *map(len, parts)])
    flat = np.array([number[part] for each in parts for part in each], dtype=np.int64)
    sizes = np.where(codes >= 0, np.diff(first)[codes], 1)
    row = np.repeat(rows, sizes)
    place = np.arange(len(row)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    code = np.where(codes[row] >= 0, flat[np.minimum(first[codes[row]] + place, len(flat) - 1)], -1)
    parent = np.array([number.get(name, -2) for name in names], dtype=np.int64)[table.parent.codes]
    # a joined name is no node, so that it can be nobody's parent: a number that no node has
    parent = np.where(parent == -2, len(number), parent)
    return row, code, np.where(table.parent.codes >= 0, parent, -1), len(number) + 1


def _numbered(keys: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray, int]:
    """Dense numbers for `keys` in their order, the numbers of `wanted` (-1 where it is no key), and how many there are.

    Linear in the rows where keys are not much more than there are rows.
    """
    span = int(max(keys.max(), wanted.max(initial=0))) + 1
    if span > 4 * len(keys) + 1024:
        values, number = np.unique(keys, return_inverse=True)
        found = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
        return number.reshape(-1), np.where(values[found] == wanted, found, -1), len(values)
    there = np.zeros(span, dtype=np.bool_)
    there[keys] = True
    number = np.where(there, np.cumsum(there) - 1, -1)
    return number[keys], number[wanted], int(there.sum())


def _depth(above: IntArray, node: IntArray, row: IntArray, table: RowTable) -> IntArray:
    """[N] distance from the root, given each node's parent."""
    depth = np.where(above < 0, 0, -1)
    level, below = 0, np.flatnonzero(above >= 0)
    while len(below):
        reached = depth[above[below]] == level
        if not reached.any():
            at = int(row[int(np.argmax(depth[node] < 0))])
            raise MarlError(
                f"node '{table.node.value(at)}' of task '{table.uid.value(at)}' (row '{table.key(at)}') is its own "
                "ancestor"
            )
        level += 1
        depth[below[reached]] = level
        below = below[~reached]
    return depth
