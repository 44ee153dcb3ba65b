"""The tree defined by the columns `node` and `parent`, and its traversal order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from marl_verl.algo.advantage.columns import BoolArray, FloatArray, IntArray, Labels, dense, first_true
from marl_verl.episode.turn import JOIN
from marl_verl.errors import MarlError


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
