"""One policy that learns in its own time: its buffer, its version, and the thread in which an update and its sync run.

A row in the buffer is a turn whose advantage is known, so that rows of one group need not stay together. With versions
v counted in updates of the policy, the buffer of n rows is full when n >= fill; a full one gives its

    floor(n / batch) * batch   oldest rows (smallest v first, then in the order in which they came),

`batch` of them to an optimiser update, and keeps the remainder. The staleness of a row is (v when its update starts) -
(v that sampled it); a row beyond `max_staleness` is taken out and not learnt from. MARS2 fills to 16 and learns from 8
(arXiv 2602.07848, authors' code, which throws the remainder away).

An update of a policy whose version is v may begin when its buffer is full, no other of its updates is under way, and

    v + 1 - (oldest version that a task under way may have rows of) <= max_staleness:

otherwise it waits until such tasks are finished, or their rows would come too late to be learnt from. It never waits
for another policy. After the update the version is v + 1, and so are the weights on the servers.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from transfer_queue import KVBatchMeta

from marl_verl.threads import in_thread

if TYPE_CHECKING:
    from marl_verl.rollout.manager import TeamRolloutManager
    from marl_verl.trainer.policy_runtime import PolicyRuntime


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
    """The rows of one policy that nothing has learnt from yet; `rows` has the oldest first."""

    def __init__(self, fill: int, batch: int, max_staleness: int) -> None:
        self.fill, self.batch, self.max_staleness = fill, batch, max_staleness
        self.rows: list[Waiting] = []

    @property
    def full(self) -> bool:
        return len(self.rows) >= self.fill

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
            insort(self.rows, row, key=attrgetter("version"))  # behind those of the same version

    def take(self, version: int) -> Taken:
        """Rows for an update that starts at `version`, none if the buffer is not full without the stale ones."""
        rows = self.rows
        stale = sum(version - row.version > self.max_staleness for row in rows)
        fresh = len(rows) - stale
        end = stale + (fresh // self.batch * self.batch if fresh >= self.fill else 0)
        self.rows = rows[end:]
        return Taken(rows[stale:end], rows[:stale])


@dataclass(frozen=True)
class Learnt:
    """An update that has ended: its metrics, and how stale each of its rows was."""

    values: dict[str, float]
    staleness: list[int]


class Learner:
    """Belongs to the trainer's thread; only the work of an update is done in another."""

    def __init__(self, runtime: PolicyRuntime, buffer: Buffer) -> None:
        self.runtime, self.buffer, self.name = runtime, buffer, runtime.name
        self.version = 0  # updates so far; what the servers say with every action
        self.spent: dict[str, dict[str, Any]] = {}  # key -> tag of rows that are done with: their owner takes them out
        self.learnt: list[Learnt] = []  # updates that have ended since the last `metrics`
        self.dropped = 0  # rows that were too stale since then
        self.future: Future[tuple[KVBatchMeta, Learnt]] | None = None  # of the update under way

    def begin(self, gates: TeamRolloutManager, oldest: int | None) -> None:
        """Begin an update if it is time for one, given the oldest version that a task under way may have rows of."""
        bound = self.buffer.max_staleness
        if self.future or not self.buffer.full or (oldest is not None and self.version + 1 - oldest > bound):
            return
        rows, dropped = self.buffer.take(self.version)
        self.dropped += len(dropped)
        self.spent.update((row.key, dict(row.tag)) for row in dropped)
        if rows:
            version = self.version
            self.future = in_thread(f"update-{self.name}", lambda: self._work(gates, rows, version))

    def end(self) -> None:
        """Note the end of an update, if one has ended. Raises what it raised."""
        if self.future is None or not self.future.done():
            return
        done, self.future = self.future, None
        part, learnt = done.result()
        self.version += 1
        self.spent.update(zip(part.keys, part.tags, strict=True))
        self.learnt.append(learnt)

    def _work(self, gates: TeamRolloutManager, rows: list[Waiting], version: int) -> tuple[KVBatchMeta, Learnt]:
        """Update at `version` and sync, in a thread of its own."""
        begun = time.monotonic()
        batch = KVBatchMeta(partition_id="train", keys=[row.key for row in rows], tags=[dict(row.tag) for row in rows])
        # where servers sleep to make room for training, nobody may ask them meanwhile
        makes_room = bool(self.runtime.config.actor_rollout_ref.rollout.free_cache_engine)
        if makes_room:
            gates.close_gate(self.name)
            self.runtime.sleep()
        part, values = self.runtime.update(batch, updates=len(rows) // self.buffer.batch)
        updated = time.monotonic()
        if not makes_room:
            gates.close_gate(self.name)
        self.runtime.sync_weights(version + 1)
        gates.open_gate(self.name)
        values |= {"update_seconds": updated - begun, "sync_seconds": time.monotonic() - updated}
        return part, Learnt(values, [version - row.version for row in rows])

    def metrics(self) -> dict[str, float]:
        """`policy/NAME/...` since the last call: means over the updates that have ended, and what they learnt from."""
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
        """What `restore` takes; the rows' tensors are not in it. No update may be under way."""
        assert self.future is None
        rows, learnt = [row._asdict() for row in self.buffer.rows], [asdict(each) for each in self.learnt]
        return {"version": self.version, "rows": rows, "learnt": learnt, "dropped": self.dropped}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self.version, self.dropped = state["version"], state["dropped"]
        self.learnt = [Learnt(**each) for each in state["learnt"]]
        self.buffer.add(Waiting(**row) for row in state["rows"])
