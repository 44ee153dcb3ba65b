"""Rows of tokens as a forest, in which what several rows begin with is once; and the order of rows in an update.

    rows    a b c d        tree     a b c d e f          A token sees the tokens on its path: the one at column q sees
            a b c e        depth    0 1 2 3 3 2          that at column k if k <= q <= last[k], where last[k] is the
            a b f          last     5 5 4 3 4 5          last column below k.

Rows are sorted, so that each shares most with a row beside it, and trees are written in depth-first order.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from marl_verl.backend.learning.batches import jagged
from marl_verl.backend.protocol import Rows, RowStore

Ints = NDArray[np.int64]
SPAN, LEAST = 3, 1 / 8
"""A tree has at most `SPAN` times the tokens of its longest row, of which all rows share `LEAST` or more: attention is
computed between all tokens of a tree."""
PADDING = {"response_len": 1, "seq_len": 2, "is_padding": True}  # in the tag of a padding row


class Forest:
    """n rows as trees; a row is one path of one tree.

    Args:
        column: the tokens of the rows, nested, each with at least two.
        branches: whether a token may have several next ones; then trees are without the rows' last tokens, which
            predict nothing. Otherwise a tree is one path, of rows that each begin with the row before.
        most: tokens of a tree of several rows.

    Attributes:
        rows: the rows of each tree.
        sizes: tokens of each tree, each counted once.
    """

    def __init__(self, column: torch.Tensor, branches: bool, most: int) -> None:
        self._starts = column.offsets().tolist()
        tokens = np.split(column.values().cpu().numpy(), self._starts[1:-1])
        self._tokens = [row[:-1] for row in tokens] if branches else tokens
        keys = [row.astype(">u4").tobytes() for row in self._tokens]
        order = sorted(range(len(keys)), key=keys.__getitem__)
        pairs = itertools.pairwise(self._tokens[row] for row in order)
        self._sizes = np.array([len(self._tokens[row]) for row in order])
        self._shared = np.array([0, *(_common(*pair) for pair in pairs)])
        if not branches:
            self._shared[1:][self._shared[1:] < self._sizes[:-1]] = 0
        parts = [*itertools.pairwise([*np.flatnonzero(self._shared == 0).tolist(), len(order)])]
        while parts:
            first, end = parts.pop()
            if cut := self._cut(first, end, most):
                self._shared[cut] = 0
                parts += [(first, cut), (cut, end)]
        heads = np.flatnonzero(self._shared == 0)
        self.rows = [part.tolist() for part in np.split(np.array(order), heads[1:])]
        self.sizes: Ints = np.add.reduceat(self._sizes - self._shared, heads)

    def _cut(self, first: int, end: int, most: int) -> int:
        """Where to cut a tree that is too large or shares too little: where rows share least, near its middle, or 0."""
        sizes, shared = self._sizes[first:end], self._shared[first:end]
        total, longest = int((sizes - shared).sum()), int(sizes.max())
        if total <= longest:  # a path costs no more than its longest row
            return 0
        least = int(shared[1:].min())
        if total <= min(most, SPAN * longest) and LEAST * longest <= least:
            return 0
        places = 1 + np.flatnonzero(shared[1:] == least)
        return first + int(places[np.abs(2 * places - (end - first)).argmin()])

    def layout(self) -> tuple[list[Ints], Ints, Ints]:
        """Per tree [token, depth, `last`], [3, tokens]; the tree of each row, [n]; and the column in its tree of each
        token of `column`, 0 for one that no tree has."""
        trees, shared = [np.empty((3, size), dtype=np.int64) for size in self.sizes], iter(self._shared.tolist())
        tree_of, column_of = np.empty(len(self._tokens), dtype=np.int64), np.zeros(self._starts[-1], dtype=np.int64)
        for number, (rows, tree) in enumerate(zip(self.rows, trees, strict=True)):
            path, end = np.empty(0, dtype=np.int64), 0  # the columns of a row, and of the tree so far
            for row in rows:
                tokens, common = self._tokens[row], next(shared)
                new = len(tokens) - common
                path = np.concatenate([path[:common], np.arange(end, end + new)])
                end += new
                tree[0, path], tree[1, path], tree[2, path] = tokens, np.arange(len(tokens)), end - 1
                tree_of[row] = number
                column_of[self._starts[row] :][: len(tokens)] = path
        return trees, tree_of, column_of


def _common(row: NDArray[Any], other: NDArray[Any]) -> int:
    """How many tokens two rows begin with alike."""
    count = min(len(row), len(other))
    different = np.flatnonzero(row[:count] != other[:count])
    return int(different[0]) if len(different) else count


def bins(sizes: Ints, most: int) -> Iterator[list[int]]:
    """Trees, largest first, in groups of at most `most` tokens with their padding, or of one tree."""
    group: list[int] = []
    for tree in np.argsort(-sizes, kind="stable").tolist():
        if group and (len(group) + 1) * sizes[group[0]] > most:
            yield group
            group = []
        group.append(tree)
    yield group


def arranged(
    store: RowStore, batch: Rows, updates: int, ranks: int, branches: bool | None, most: int
) -> tuple[Rows, int]:
    """The batch in the order in which workers read it: rank by rank, an equal number of rows for each update.

    An update has the same rows, neighbours in the batch, whatever they share and however many ranks there are. Rows
    that share are on one rank, ranks are balanced by computed tokens, and padding rows fill up.

    Args:
        branches, most: of the forest of an update; None for rows that share nothing.

    Returns:
        The rows, and the number of tokens that are computed in a forward pass of all of them.
    """
    parts, computed = [], 0
    for rows in map(np.ndarray.tolist, np.array_split(np.arange(len(batch)), updates)):
        trees, sizes = [[row] for row in rows], np.array([batch.tags[row]["seq_len"] for row in rows])
        if branches is not None:
            column = store.get([batch.keys[row] for row in rows], ["input_ids"])["input_ids"]
            forest = Forest(column, branches, most)
            trees, sizes = [[rows[row] for row in tree] for tree in forest.rows], forest.sizes
        computed += int(sizes.sum())
        parts.append(_of_ranks(trees, sizes, ranks))
    size = max(len(rows) for part in parts for rows in part)
    padding = iter(range(len(batch), size * updates * ranks))
    batch = _padded(store, batch, size * updates * ranks - len(batch))
    filled = [[[*rows, *itertools.islice(padding, size - len(rows))] for rows in part] for part in parts]
    return batch.part([row for rank in range(ranks) for part in filled for row in part[rank]]), computed


def _of_ranks(trees: Sequence[list[int]], sizes: Ints, ranks: int) -> list[list[int]]:
    """The rows of each rank, equally many if trees allow it: the largest first, to the rank with the fewest tokens."""
    parts: list[list[int]] = [[] for _ in range(ranks)]
    tokens, room = [0] * ranks, -(-sum(map(len, trees)) // ranks)
    for tree in np.argsort(-sizes, kind="stable"):
        free = [rank for rank in range(ranks) if len(parts[rank]) + len(trees[tree]) <= room] or range(ranks)
        rank = min(free, key=tokens.__getitem__)
        parts[rank] += trees[tree]
        tokens[rank] += int(sizes[tree])
    return [sorted(part) for part in parts]


def _padded(store: RowStore, batch: Rows, count: int) -> Rows:
    """The batch and a number of rows without a response token."""
    if not count:
        return batch
    keys = [f"padding-{batch.keys[0]}-{number}" for number in range(count)]
    zero = torch.zeros(1, dtype=torch.int64)
    fields: dict[str, Any] = {"input_ids": zero.repeat(2), "position_ids": torch.arange(2)}
    fields |= dict.fromkeys(("prompts", "responses", "response_mask", "loss_mask"), zero)
    fields |= dict.fromkeys(("advantages", "old_log_probs", "rollout_log_probs"), torch.zeros(1))
    store.put(keys, {name: jagged([values] * count) for name, values in fields.items()})
    return Rows([*batch.keys, *keys], [*batch.tags, *({**batch.tags[0], **PADDING} for _ in keys)])
