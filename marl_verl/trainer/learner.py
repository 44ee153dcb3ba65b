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

from __future__ import annotations

import math
import time
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer_queue import KVBatchMeta

from marl_verl.threads import in_thread

if TYPE_CHECKING:
    from marl_verl.backend.verl.policy_runtime import PolicyRuntime
    from marl_verl.backend.verl.rollout.manager import TeamRolloutManager


class Waiting(NamedTuple):
    """A buffered row: its key and tag in TransferQueue, and the policy version that sampled it."""

    key: str
    tag: Mapping[str, Any]
    version: int


class Taken(NamedTuple):
    """Rows taken from a buffer, oldest first: rows to learn from, and dropped rows, which are too stale."""

    rows: list[Waiting]
    dropped: list[Waiting]


class Buffer:
    """The rows of one policy that no update has used yet; `rows` is ordered oldest first.

    Args:
        fill: rows of a full buffer; None: those of `size` tasks.
        batch: rows are taken in multiples of this number; None: with `fill` all rows, else those of `size` tasks.
        size: tasks of a batch.
    """

    def __init__(self, fill: int | None, batch: int | None, max_staleness: int, size: int = 1) -> None:
        self.fill, self.batch, self.max_staleness, self.size = fill, batch, max_staleness, size
        self.rows: list[Waiting] = []
        self._each = None if fill is None else fill / size  # rows of a task

    @property
    def full(self) -> bool:
        return self._enough(self.rows)

    @property
    def tasks(self) -> int:
        """Number of different tasks among the rows."""
        return _tasks(self.rows)

    @property
    def missing(self) -> int:
        """Number of tasks that the buffer lacks to be full; negative if it has more. With `fill`, an estimate."""
        tasks = self.tasks
        if self._each is None or self.fill is None:
            missing = self.size - tasks
        else:
            self._each = len(self.rows) / tasks if tasks else self._each
            missing = math.ceil((self.fill - len(self.rows)) / self._each)
        return missing if self.full else max(1, missing)

    def add(self, rows: Iterable[Waiting]) -> None:
        """Add rows. ValueError for a row that is already in the buffer, which would be learnt from twice."""
        there = {row.key for row in self.rows}
        for row in rows:
            if row.key in there:
                raise ValueError(f"row '{row.key}' is in the buffer already")
            there.add(row.key)
            insort(self.rows, row, key=attrgetter("version"))  # after those of the same version

    def take(self, version: int) -> Taken:
        """Take rows for an update that starts at `version`; none if the buffer is not full without the stale rows."""
        stale = sum(version - row.version > self.max_staleness for row in self.rows)
        dropped, fresh = self.rows[:stale], self.rows[stale:]
        taken = fresh if self._enough(fresh) else []
        if self.batch is not None:
            taken = taken[: len(taken) // self.batch * self.batch]
        elif self.fill is None:
            tasks = set(list(dict.fromkeys(map(_task, taken)))[: self.size])
            taken = [row for row in taken if _task(row) in tasks]
        keys = {row.key for row in taken}
        self.rows = [row for row in fresh if row.key not in keys]
        return Taken(taken, dropped)

    def _enough(self, rows: Sequence[Waiting]) -> bool:
        if self.fill is not None:
            return len(rows) >= self.fill
        return len(rows) >= (self.batch or 1) and _tasks(rows) >= self.size


def _task(row: Waiting) -> str:
    return row.key.partition("_")[0]


def _tasks(rows: Iterable[Waiting]) -> int:
    return len(set(map(_task, rows)))


@dataclass(frozen=True)
class Learnt:
    """A finished update: its metrics, and the staleness of each of its rows."""

    values: dict[str, float]
    staleness: list[int]


class Learner:
    """The learner of one policy. Call its methods from the trainer's thread; only updates run in another thread."""

    def __init__(self, runtime: PolicyRuntime, buffer: Buffer) -> None:
        self.runtime, self.buffer, self.name = runtime, buffer, runtime.name
        self.version = 0  # updates so far; the servers report it with every action
        self.spent: dict[str, dict[str, Any]] = {}  # key -> tag of rows that the owner may delete
        self.learnt: list[Learnt] = []  # updates finished since the last `metrics`
        self.dropped = 0  # rows dropped since then, too stale
        self.future: Future[tuple[KVBatchMeta, Learnt]] | None = None  # of the running update

    def begin(self, gates: TeamRolloutManager, oldest: int | None) -> None:
        """Start an update if one may start. `oldest`: oldest version of this policy among tasks in flight."""
        bound = self.buffer.max_staleness
        if self.future or not self.buffer.full or (oldest is not None and self.version + 1 - oldest > bound):
            return
        rows, dropped = self.buffer.take(self.version)
        self.dropped += len(dropped)
        self.spent.update((row.key, dict(row.tag)) for row in dropped)
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
        part, learnt = done.result()
        self.version += 1
        self.spent.update(zip(part.keys, part.tags, strict=True))
        self.learnt.append(learnt)

    def _work(self, gates: TeamRolloutManager, rows: list[Waiting], version: int) -> tuple[KVBatchMeta, Learnt]:
        """Update at `version` and sync weights; runs in the update's thread."""
        begun = time.monotonic()
        batch = KVBatchMeta(partition_id="train", keys=[row.key for row in rows], tags=[dict(row.tag) for row in rows])
        # servers that sleep during training accept no requests meanwhile
        makes_room = bool(self.runtime.config.actor_rollout_ref.rollout.free_cache_engine)
        if makes_room:
            gates.close_gate(self.name)
            self.runtime.sleep()
        size = self.buffer.batch
        part, values = self.runtime.update(batch, updates=None if size is None else len(rows) // size)
        updated = time.monotonic()
        if not makes_room:
            gates.close_gate(self.name)
        self.runtime.sync_weights(version + 1)
        gates.open_gate(self.name)
        values |= {"update_seconds": updated - begun, "sync_seconds": time.monotonic() - updated}
        return part, Learnt(values, [version - row.version for row in rows])

    def metrics(self) -> dict[str, float]:
        """`policy/NAME/...` since the last call: means over the finished updates, and row counts."""
        learnt, self.learnt = self.learnt, []
        dropped, self.dropped = self.dropped, 0
        columns: dict[str, list[float]] = {}
        for each in learnt:
            for name, value in each.values.items():
                columns.setdefault(name, []).append(value)
        found = {name: sum(column) / len(column) for name, column in columns.items()}
        staleness = [age for each in learnt for age in each.staleness]
        if staleness:
            found["staleness_mean"], found["staleness_max"] = sum(staleness) / len(staleness), float(max(staleness))
        counts = {"updates": len(learnt), "trained_rows": len(staleness), "stale_dropped": dropped}
        counts |= {"buffer_rows": len(self.buffer.rows), "version": self.version}
        found.update({name: float(count) for name, count in counts.items()})
        return {f"policy/{self.name}/{name}": value for name, value in found.items()}

    def state(self) -> dict[str, Any]:
        """The state for `restore`, without the rows' tensors. No update may be running."""
        assert self.future is None
        rows, learnt = [row._asdict() for row in self.buffer.rows], [asdict(each) for each in self.learnt]
        return {"version": self.version, "rows": rows, "learnt": learnt, "dropped": self.dropped}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.version, self.dropped = state["version"], state["dropped"]
        self.learnt = [Learnt(**each) for each in state["learnt"]]
        self.buffer.add(Waiting(**row) for row in state["rows"])
