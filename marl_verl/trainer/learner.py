"""Asynchronous learning of one policy: its buffer, its version, and the thread that runs its updates and weight syncs.

A row in the buffer is a turn whose advantage is already computed, so rows of one group may be used in different
updates. The version v of a policy is its number of updates. A buffer of n rows is full when they are from a batch of
tasks, or when n >= fill where `fill` is set. It then yields the rows of a batch of tasks, or all n where `fill` is set,
in as many optimiser updates as a synchronous step has. Where `batch` is set, it yields

    floor(n / batch) * batch   oldest rows (smallest v first, then in order of arrival),

`batch` of them per optimiser update, and keeps the remainder. The staleness of a row is (v when its update starts) -
(v that sampled it); rows with staleness above `max_staleness` are dropped. MARS2 has fill 16 and batch 8
(arXiv 2602.07848, authors' code, which discards the remainder).

An update of a policy with version v may start when its buffer is full, no other update of the policy is running, and

    v + 1 - (oldest version that may have sampled rows of a task in flight) <= max_staleness.

Otherwise it waits until those tasks are finished; else their rows would be too stale to use. It never waits for
another policy. After the update the version is v + 1, and the servers have the weights of version v + 1.
"""

import math
import time
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from marl_verl.backend.protocol import Rows
from marl_verl.threads import in_thread

if TYPE_CHECKING:
    from marl_verl.backend.learning.policy import LearningPolicy
    from marl_verl.backend.protocol import Stream


class Waiting(NamedTuple):
    """A buffered row: its key and tag in the store, and the policy version that sampled it."""

    key: str
    tag: Mapping[str, Any]
    version: int

    @property
    def task(self) -> str:
        return self.key.partition("_")[0]


class Buffer:
    """The rows of one policy that no update has used yet, oldest first; `size`: tasks of a batch."""

    def __init__(self, fill: int | None, batch: int | None, max_staleness: int, size: int = 1) -> None:
        self.fill, self.batch, self.max_staleness, self.size = fill, batch, max_staleness, size
        self.rows: list[Waiting] = []
        self._rows_of_task = None if fill is None else fill / size

    @property
    def full(self) -> bool:
        return self._enough(self.rows)

    @property
    def tasks(self) -> int:
        return len({row.task for row in self.rows})

    @property
    def missing(self) -> int:
        """Number of tasks that the buffer lacks to be full; negative if it has more. With `fill`, an estimate."""
        tasks = self.tasks
        if self._rows_of_task is None or self.fill is None:
            missing = self.size - tasks
        else:
            self._rows_of_task = len(self.rows) / tasks if tasks else self._rows_of_task
            missing = math.ceil((self.fill - len(self.rows)) / self._rows_of_task)
        return missing if self.full else max(1, missing)

    def add(self, rows: Iterable[Waiting]) -> None:
        """Add rows, each after those of the same version."""
        for row in rows:
            insort(self.rows, row, key=attrgetter("version"))

    def take(self, version: int) -> tuple[list[Waiting], list[Waiting]]:
        """Take rows for an update that starts at `version`; none if the buffer is not full without the stale rows.
        Returns the rows to learn from, and those dropped, which are too stale, oldest first."""
        stale = sum(version - row.version > self.max_staleness for row in self.rows)
        dropped, fresh = self.rows[:stale], self.rows[stale:]
        taken = fresh if self._enough(fresh) else []
        if self.batch is not None:
            taken = taken[: len(taken) // self.batch * self.batch]
        elif self.fill is None:
            tasks = set(list(dict.fromkeys(row.task for row in taken))[: self.size])
            taken = [row for row in taken if row.task in tasks]
        keys = {row.key for row in taken}
        self.rows = [row for row in fresh if row.key not in keys]
        return taken, dropped

    def _enough(self, rows: Sequence[Waiting]) -> bool:
        if self.fill is not None:
            return len(rows) >= self.fill
        return len(rows) >= (self.batch or 1) and len({row.task for row in rows}) >= self.size


Learnt = tuple[dict[str, float], list[int]]
"""A finished update: its metrics, and the staleness of each of its rows."""


class Learner:
    """The learner of one policy. Call its methods from the trainer's thread; only updates run in another thread."""

    def __init__(self, runtime: "LearningPolicy", buffer: Buffer) -> None:
        self.runtime, self.buffer, self.name = runtime, buffer, runtime.name
        self.version = 0  # updates so far; the servers report it with every action
        self.spent: list[str] = []  # keys of rows that the owner may delete
        self.learnt: list[Learnt] = []  # updates finished since the last `metrics`
        self.dropped = 0  # rows dropped since then, too stale
        self.future: Future[tuple[list[str], Learnt]] | None = None  # of the running update: what it spends

    def begin(self, gates: "Stream", oldest: int | None) -> None:
        """Start an update if one may start. `oldest`: oldest version of this policy among tasks in flight."""
        bound = self.buffer.max_staleness
        if self.future or not self.buffer.full or (oldest is not None and self.version + 1 - oldest > bound):
            return
        rows, dropped = self.buffer.take(self.version)
        self.dropped += len(dropped)
        self.spent += [row.key for row in dropped]
        if rows:
            version = self.version
            self.future = in_thread(f"update-{self.name}", lambda: self._work(gates, rows, version))

    @property
    def missing(self) -> int:
        """Number of tasks to sample for the next update; negative: tasks that wait while an update is running."""
        return -self.buffer.tasks if self.future else self.buffer.missing

    def end(self) -> None:
        """Collect the update if it has finished. Raises the exception of a failed update."""
        if self.future is None or not self.future.done():
            return
        done, self.future = self.future, None
        spent, learnt = done.result()
        self.version += 1
        self.spent += spent
        self.learnt.append(learnt)

    def _work(self, gates: "Stream", rows: list[Waiting], version: int) -> tuple[list[str], Learnt]:
        """Update at `version` and sync weights; runs in the update's thread."""
        batch = Rows([row.key for row in rows], [dict(row.tag) for row in rows])
        # servers that sleep during training accept no requests meanwhile
        if self.runtime.sleeps:
            gates.close_gate(self.name)
            self.runtime.sleep()
        size = self.buffer.batch
        part, values = self.runtime.update(batch, updates=None if size is None else len(rows) // size)
        updated = time.monotonic()
        if not self.runtime.sleeps:
            gates.close_gate(self.name)
        self.runtime.sync(version + 1)
        gates.open_gate(self.name)
        values["sync_seconds"] = time.monotonic() - updated
        return [*batch.keys, *part.keys], (values, [version - row.version for row in rows])

    def metrics(self) -> dict[str, float]:
        """`policy/NAME/...` since the last call: means over the finished updates, and row counts."""
        learnt, self.learnt = self.learnt, []
        dropped, self.dropped = self.dropped, 0
        columns: dict[str, list[float]] = {}
        for values, _ in learnt:
            for name, value in values.items():
                columns.setdefault(name, []).append(value)
        metrics = {name: sum(column) / len(column) for name, column in columns.items()}
        staleness = [age for _, ages in learnt for age in ages]
        if staleness:
            metrics |= {"staleness_mean": sum(staleness) / len(staleness), "staleness_max": float(max(staleness))}
        counts = {"updates": len(learnt), "trained_rows": len(staleness), "stale_dropped": dropped}
        counts |= {"buffer_rows": len(self.buffer.rows), "version": self.version}
        metrics |= {name: float(count) for name, count in counts.items()}
        return {f"policy/{self.name}/{name}": value for name, value in metrics.items()}

    def state(self) -> dict[str, Any]:
        """The state for `restore`, without the rows' tensors. No update may be running."""
        assert self.future is None
        rows = [row._asdict() for row in self.buffer.rows]
        return {"version": self.version, "rows": rows, "learnt": self.learnt, "dropped": self.dropped}

    def restore(self, state: dict[str, Any]) -> None:
        self.version, self.dropped, self.learnt = state["version"], state["dropped"], state["learnt"]
        self.buffer.add(Waiting(**row) for row in state["rows"])
