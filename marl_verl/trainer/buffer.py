"""The buffer of one policy: rows that wait until there are enough of them to learn from.

A row is a turn whose advantage is known, so that rows of one group need not stay together. With versions v counted in
updates of the policy, the buffer of n rows is full when n >= fill; a full one gives its

    floor(n / batch) * batch   oldest rows (smallest v first, then in the order in which they came),

`batch` of them to an optimiser update, and keeps the remainder. The staleness of a row is (v when its update starts) -
(v that sampled it); a row beyond `max_staleness` is taken out and not learnt from. MARS2 fills to 16 and learns from 8
(arXiv 2602.07848, authors' code, which throws the remainder away).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Waiting(NamedTuple):
    """A row in a buffer: the key and tag that it has in TransferQueue, and the policy's version that sampled it."""

    key: str
    tag: Mapping[str, Any]
    version: int


class Taken(NamedTuple):
    """What left a buffer, oldest first: rows to learn from, and rows that are too stale for that."""

    rows: list[Waiting]
    dropped: list[Waiting]


class Buffer:
    """The rows of one policy that nothing has learnt from yet.

    Args:
        fill: rows that it must have before it gives any.
        batch: rows of an optimiser update, at most `fill`.
        max_staleness: updates that a row may be behind.
    """

    def __init__(self, fill: int, batch: int, max_staleness: int) -> None:
        self.fill, self.batch, self.max_staleness = fill, batch, max_staleness
        self._rows: list[tuple[int, int, Waiting]] = []  # (version, arrival, row), sorted
        self._arrived = 0

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def rows(self) -> list[Waiting]:
        """Oldest first: what a checkpoint has to keep, and what `add` takes back."""
        return [row for _, _, row in self._rows]

    @property
    def full(self) -> bool:
        return len(self) >= self.fill

    @property
    def tasks(self) -> int:
        """How many tasks the rows are of."""
        return len({row.key.partition("_")[0] for row in self.rows})

    def add(self, rows: Iterable[Waiting]) -> None:
        """Put rows in. ValueError for one that is there already: it would be learnt from twice."""
        there = {row.key for row in self.rows}
        for row in rows:
            if row.key in there:
                raise ValueError(f"row '{row.key}' is in the buffer already")
            there.add(row.key)
            insort(self._rows, (row.version, self._arrived, row))
            self._arrived += 1

    def take(self, version: int) -> Taken:
        """Rows for an update that starts at `version`, and those that are too stale for it.

        If the buffer is not full without the stale ones, there are no rows to learn from.
        """
        rows = self.rows
        stale = sum(version - row.version > self.max_staleness for row in rows)  # the oldest stand first
        fresh = len(rows) - stale
        count = fresh // self.batch * self.batch if fresh >= self.fill else 0
        del self._rows[: stale + count]
        return Taken(rows[stale : stale + count], rows[:stale])
