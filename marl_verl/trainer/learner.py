"""One policy that learns in its own time: its buffer, its version, and the thread in which an update and its sync run.

An update of a policy whose version is v may begin when its buffer is full, no other of its updates is under way, and

    v + 1 - (oldest version that a task under way may have rows of) <= max_staleness:

otherwise it waits until such tasks are finished, or their rows would come too late to be learnt from. It never waits
for another policy. After the update the version is v + 1, and so are the weights on the servers.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from transfer_queue import KVBatchMeta

from marl_verl.threads import in_thread
from marl_verl.trainer.buffer import Buffer, Waiting
from marl_verl.trainer.policy_runtime import PolicyRuntime


class Gates(Protocol):
    """The side of the rollout manager that holds a policy's requests (`rollout/gate.py`)."""

    def close_gate(self, policy: str) -> None: ...
    def open_gate(self, policy: str) -> None: ...


@dataclass(frozen=True)
class Learnt:
    """An update that has ended: its metrics, and how stale each of its rows was."""

    values: dict[str, float]
    staleness: list[int]


class Learner:
    """Belongs to the trainer's thread; only the work of an update is done in another.

    Args:
        runtime: the policy at work.

    Attributes:
        version: updates so far; what the servers say with every action.
        spent: key -> tag of the rows that are done with, padding included: their owner takes them out.
        learnt, dropped: updates that have ended, and rows that were too stale, since the last `metrics`.
        future: of the update under way.
    """

    def __init__(self, runtime: PolicyRuntime, buffer: Buffer) -> None:
        self.runtime, self.buffer = runtime, buffer
        self.name = runtime.name
        self.version = 0
        self.spent: dict[str, dict[str, Any]] = {}
        self.learnt: list[Learnt] = []
        self.dropped = 0
        self.future: Future[tuple[KVBatchMeta, Learnt]] | None = None

    def begin(self, gates: Gates, oldest: int | None) -> None:
        """Begin an update if it is time for one.

        Args:
            oldest: version of this policy that a task under way may have rows of; None without such a task.
        """
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

    def _work(self, gates: Gates, rows: list[Waiting], version: int) -> tuple[KVBatchMeta, Learnt]:
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
        counts = {
            "updates": len(learnt),
            "trained_rows": len(staleness),
            "stale_dropped": dropped,
            "buffer_rows": len(self.buffer),
            "version": self.version,
        }
        found.update({name: float(count) for name, count in counts.items()})
        return {f"policy/{self.name}/{name}": value for name, value in found.items()}

    def state(self) -> dict[str, Any]:
        """What `restore` takes; the rows' tensors are not in it. No update may be under way."""
        assert self.future is None
        return {
            "version": self.version,
            "rows": [row._asdict() for row in self.buffer.rows],
            "learnt": [asdict(each) for each in self.learnt],
            "dropped": self.dropped,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self.version, self.dropped = state["version"], state["dropped"]
        self.learnt = [Learnt(**each) for each in state["learnt"]]
        self.buffer.add(Waiting(**row) for row in state["rows"])
