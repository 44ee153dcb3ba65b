"""Rows of tokens as a forest. What several rows begin with is in it once.

    rows    a b c d        tree     a b c d e f          A token sees the tokens on its path: the one at column q sees
            a b c e        depth    0 1 2 3 3 2          that at column k if k <= q <= last[k], where last[k] is the
            a b f          last     5 5 4 3 4 5          last column below k.

Rows are sorted, so that each shares most with a row beside it, and trees are written in depth-first order.
"""

import itertools
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
SPAN, LEAST = 3, 1 / 8
"""A tree has at most `SPAN` times the tokens of its longest row, of which all rows share `LEAST` or more: attention is
computed between all tokens of a tree."""


class Forest:
    """n rows as trees; a row is one path of one tree.

    Args:
        tokens: the tokens of all rows, one row after another.
        lengths: of the rows, [n], each above 0.
        branches: whether a token may have several next ones. Otherwise a tree is one path, of rows that each begin
            with the row before.
        most: tokens of a tree of several rows.

    Attributes:
        order: the rows, sorted, [n].
        shared: how many tokens each of them has in common with the row before it in its tree, [n]; 0 for the first.
    """

    def __init__(self, tokens: NDArray[Any], lengths: Ints, branches: bool, most: int) -> None:
        width = int(lengths.max())
        seen = np.arange(width) < lengths[:, None]
        table = np.zeros(seen.shape, dtype=">u4")
        table[seen] = tokens + 1
        self.order = np.argsort(table.view(f"S{4 * width}")[:, 0], kind="stable")
        self._table, self._sizes = table[self.order], lengths[self.order]
        equal = (self._table[1:] == self._table[:-1]) & (self._table[1:] > 0)
        shared = np.where(equal.all(1), width, equal.argmin(1))
        if not branches:
            shared[shared < self._sizes[:-1]] = 0
        self.shared = np.concatenate([[0], shared])
        starts = [*np.flatnonzero(self.shared == 0).tolist(), len(lengths)]
        parts = [*itertools.pairwise(starts)]
        while parts:
            first, end = parts.pop()
            if cut := self._cut(first, end, most):
                self.shared[cut] = 0
                parts += [(first, cut), (cut, end)]

    def _cut(self, first: int, end: int, most: int) -> int:
        """Where to divide a tree that is too large, or whose rows share too little: where they share least, near the
        middle; 0 for another tree."""
        sizes, shared = self._sizes[first:end], self.shared[first:end]
        total, longest = int((sizes - shared).sum()), int(sizes.max())
        if total <= longest:  # a path costs no more than its longest row
            return 0
        least = int(shared[1:].min())
        if total <= min(most, SPAN * longest) and LEAST * longest <= least:
            return 0
        places = 1 + np.flatnonzero(shared[1:] == least)
        return first + int(places[np.abs(2 * places - (end - first)).argmin()])

    @cached_property
    def _heads(self) -> Ints:
        """Where trees begin in `order`."""
        return np.flatnonzero(self.shared == 0)

    @cached_property
    def sizes(self) -> Ints:
        """Tokens of each tree, each counted once."""
        return np.add.reduceat(self._sizes - self.shared, self._heads)

    def rows(self) -> list[Ints]:
        """The rows of each tree."""
        return np.split(self.order, self._heads[1:])

    @cached_property
    def _starts(self) -> Ints:
        """The column of a row's first own token, [n], in `order`."""
        own = self._sizes - self.shared
        before = own.cumsum() - own
        starts: Ints = before - np.repeat(before[self._heads], np.diff(self._heads, append=len(self.order)))
        return starts

    def columns(self) -> tuple[Ints, Ints]:
        """(tree, [n], column in its tree of each token, [n, longest]) of the rows in the order they were given."""
        depths, numbers = np.arange(self._table.shape[1]), np.arange(len(self.order))[:, None]
        owner = np.maximum.accumulate(np.where(self.shared[:, None] <= depths, numbers, 0), axis=0)
        columns = self._starts[owner] + depths - self.shared[owner]
        trees = np.repeat(np.arange(len(self._heads)), np.diff(self._heads, append=len(self.order)))
        back = np.argsort(self.order)
        return trees[back], columns[back]

    def layout(self) -> tuple[Ints, Ints, Ints]:
        """(token, depth, `last`) of the trees, one after another, [tokens of the forest]."""
        count, depths = len(self.order), np.arange(self._table.shape[1])
        ends = self._starts + self._sizes - self.shared - 1
        begins = np.where(self.shared[:, None] <= depths, np.arange(count)[:, None], count)
        after = np.full(begins.shape, count)  # the next row that does not share a row's token at a depth
        after[:-1] = np.minimum.accumulate(begins[:0:-1], axis=0)[::-1]
        new = (depths >= self.shared[:, None]) & (depths < self._sizes[:, None])  # whether a row is the first with it
        return self._table[new].astype(np.int64) - 1, np.broadcast_to(depths, new.shape)[new], ends[after - 1][new]


def forest_of(tokens: NDArray[Any], lengths: Ints, branches: bool, most: int) -> Forest:
    """The `Forest` of rows of at least two tokens; one with branches is without the rows' last tokens, which predict
    nothing."""
    if branches:
        tokens, lengths = np.delete(tokens, lengths.cumsum() - 1), lengths - 1
    return Forest(tokens, lengths, branches, most)


def bins(sizes: Ints, most: int) -> Iterator[list[int]]:
    """Trees, largest first, in groups of at most `most` tokens with their padding, or of one tree."""
    group: list[int] = []
    for tree in np.argsort(-sizes, kind="stable").tolist():
        if group and (len(group) + 1) * sizes[group[0]] > most:
            yield group
            group = []
        group.append(tree)
    yield group
