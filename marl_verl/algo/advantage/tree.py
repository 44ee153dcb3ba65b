"""The tree defined by the columns `node` and `parent`, and its traversal order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from marl_verl.algo.advantage.columns import BoolArray, FloatArray, IntArray, Labels, first_true
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError


@dataclass(frozen=True)
class Tree:
    """The nodes of a table.

    Attributes:
        row, node: [p] pairs (row, node): one pair for most rows, several for a crossed row. Nodes are numbered
            0..count-1 over all tasks; a row without a node forms a separate node.
        parent: [n] the row's parent node, -1 at the root.
        count: number of nodes.
        depth: [count] 0 for children of the root.
    """

    row: IntArray
    node: IntArray
    parent: IntArray
    count: int
    depth: IntArray

    @classmethod
    def of(cls, uid: Labels, nodes: Labels, parents: Labels, key: Callable[[int], str]) -> "Tree":
        """Create the tree of these columns; `key` gives the key of a row, for errors.

        MarlError: a parent that is not a node of the task, a node with two parents, or a cycle.
        """
        row, code, parent_code, named = _places(nodes, parents)
        # rows without a node are numbered after the named nodes of all tasks
        own = np.where(code >= 0, uid.codes[row] * named + code, len(uid.names) * named + row)
        inner = np.flatnonzero(parent_code >= 0)
        node, above_of, count = _numbered(own, uid.codes[inner] * named + parent_code[inner])
        if (lost := first_true(above_of < 0)) is not None:
            at = int(inner[lost])
            where = f"which is not a node of task '{uid.value(at)}'"
            raise MarlError(f"row '{key(at)}' has parent '{parents.value(at)}', {where}")
        parent = np.full(len(uid.codes), -1, dtype=np.int64)
        parent[inner] = above_of
        above = np.full(count, -1, dtype=np.int64)
        above[node] = parent[row]
        if (torn := first_true(above[node] != parent[row])) is not None:
            at = int(row[torn])
            raise MarlError(f"node '{nodes.value(at)}' of task '{uid.value(at)}' has more than one parent")
        depth, endless = _depth(above)
        if (looped := first_true(endless[node])) is not None:
            at = int(row[looped])
            raise MarlError(f"node '{nodes.value(at)}' of task '{uid.value(at)}' (row '{key(at)}') is its own ancestor")
        return cls(row, node, parent, count, depth)

    @property
    def crossed(self) -> bool:
        """Whether there are rows at several nodes."""
        return len(self.row) > len(self.parent)

    def sum_over_nodes(self, value: FloatArray, rows: IntArray) -> FloatArray:
        """[len(rows)] sum of `value` [count] over the nodes of each of `rows`."""
        if not self.crossed:
            return value[self.node[rows]]
        total = np.bincount(self.row, weights=value[self.node], minlength=len(self.parent))
        return np.asarray(total[rows], dtype=np.float64)

    def node_mean(self, value: FloatArray) -> FloatArray:
        """[count] mean of `value` [n] over the rows at each node."""
        total = np.bincount(self.node, weights=value[self.row], minlength=self.count)
        return np.asarray(total / np.bincount(self.node, minlength=self.count), dtype=np.float64)


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
    own = [[number[part] for part in joined] for joined in parts] + [[-1]]  # the last one: for rows without a node
    pairs = [(row, part) for row, code in enumerate(codes.tolist()) for part in own[code]]
    row, code = np.array(pairs, dtype=np.int64).T
    parent = np.array([number.get(name, -1) for name in names], dtype=np.int64)[parents.codes]
    return row, code, np.where(parents.codes >= 0, parent, -1), len(number)


def _numbered(keys: IntArray, wanted: IntArray) -> tuple[IntArray, IntArray, int]:
    """(dense numbers of `keys` in their order, numbers of `wanted` or -1 if not in `keys`, count of numbers)."""
    span = int(max(keys.max(), wanted.max(initial=0))) + 1
    if span > 4 * len(keys) + 1024:
        values, number = np.unique(keys, return_inverse=True)
        place = np.minimum(np.searchsorted(values, wanted), len(values) - 1)
        return number.reshape(-1), np.where(values[place] == wanted, place, -1), len(values)
    there = np.zeros(span, dtype=np.bool_)
    there[keys] = True
    number = np.where(there, np.cumsum(there) - 1, -1)
    return number[keys], number[wanted], int(there.sum())


def _depth(above: IntArray) -> tuple[IntArray, BoolArray]:
    """[N] distance from the root, given each node's parent; and [N] bool, nodes on or below a cycle."""
    # `far` is an ancestor (-1 once it is beyond the root), `depth` the distance to it; each round doubles the distance
    depth, far = (above >= 0).astype(np.int64), above.copy()
    for _ in range(len(above).bit_length() + 1):
        below = np.flatnonzero(far >= 0)
        if not len(below):
            break
        ancestor = far[below]
        depth[below] += depth[ancestor]
        far[below] = far[ancestor]
    return depth, far >= 0
