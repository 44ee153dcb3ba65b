"""The asynchronous schedule: sampling and learning overlap, and each policy updates when its own buffer is full.

    in flight are the tasks that the next update lacks, and ahead * train_batch_size more
    a task is finished: compute the advantages of its rows, add each row to the buffer of its policy
    a buffer is full:   its policy updates and syncs weights beside sampling (in one process: between acts)

The version v of a policy is its number of updates. The staleness of a row is (v when its update starts) - (v that
sampled it). A policy with a full buffer and no running update may start one when

    v + 1 - (oldest version that may have sampled rows of a task in flight) <= max_staleness;

else their rows would be too stale to use. docs/schedules.md says which rows a full buffer yields. Source: MARS2 (arXiv
2602.07848, authors' code), with fill 16, batch 8, no remainder, and no bound of staleness.
"""

import math
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from operator import attrgetter
from typing import Any, NamedTuple

from marl_verl.algo.sampling import Sample
from marl_verl.algo.sampling.sampler import sample_lines
from marl_verl.backend.learning.batches import put_advantages
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.protocol import Report, Rows
from marl_verl.backend.rollout.rows import UPDATE_FIELDS
from marl_verl.config.schema import marl_of
from marl_verl.events import timed
from marl_verl.trainer.data import in_key_order
from marl_verl.trainer.metrics import averages

KEPT_FIELDS = (*UPDATE_FIELDS, "rollout_log_probs")  # that an update and the importance correction read
Task = dict[str, Any]  # a row of `TaskData.next`, and `batch`, the number of its data batch, from 1
Learnt = tuple[dict[str, float], list[int]]  # a finished update: its metrics, and the staleness of each of its rows


class Dispatch:
    """Keeps up to `limit` tasks in flight, from their dispatch until the trainer has processed their rows. `fetch`
    returns the next batch of the data and never runs out. A checkpoint stores the tasks in flight and those fetched,
    which a resumed run dispatches again with the same uids: every task of the data is used once."""

    def __init__(self, fetch: Callable[[], list[Task]], limit: int) -> None:
        self.limit, self._fetch, self._batches = limit, fetch, 0
        self._next: deque[Task] = deque()
        self._out: dict[str, tuple[Task, Mapping[str, int]]] = {}  # with the policy versions at its dispatch

    def __len__(self) -> int:
        return len(self._out)

    def fill(self, rollouts: Any, versions: Mapping[str, int], count: int) -> None:
        """Dispatch tasks until `count` are in flight, at most `limit`. `versions`: policy -> current version."""
        for _ in range(min(count, self.limit) - len(self)):
            task = self._take()
            self._out[task["uid"]] = task, dict(versions)
            rollouts.dispatch(task, task["batch"])

    def done(self, uid: str) -> None:
        """Mark a task as processed. KeyError if it is not in flight."""
        del self._out[uid]

    def oldest(self, policy: str) -> int | None:
        """The oldest version of a policy that may have sampled rows of a task in flight; None without such tasks."""
        return min((versions[policy] for _, versions in self._out.values()), default=None)

    def state(self) -> dict[str, Any]:
        return {"batches": self._batches, "tasks": [*(task for task, _ in self._out.values()), *self._next]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`: its tasks in flight are dispatched first."""
        self._batches = int(state["batches"])
        self._next = deque(dict(task) for task in state["tasks"])
        self._out = {}

    def _take(self) -> Task:
        if not self._next:
            self._batches += 1
            for position, task in enumerate(self._fetch()):
                # numbered by data batch: a step may read several, and a resumed run continues the count
                self._next.append({**task, "uid": f"s{self._batches}t{position:05d}", "batch": self._batches})
        return self._next.popleft()


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

    def estimate_missing(self) -> int:
        """Number of tasks that the buffer lacks to be full; negative if it has more. With `fill`, by the rows of a task
        in the buffer, which are remembered for when it is empty."""
        missing, tasks = self.size - self.tasks, self.tasks
        if self._rows_of_task is not None and self.fill is not None:
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


class Learner:
    """The learner of one policy: its buffer, its version, and its updates. Its methods are called in the trainer's
    thread; `stream` runs the updates. `spent`: keys of rows that no update needs any more."""

    def __init__(self, runtime: LearningPolicy, buffer: Buffer, stream: Any, spent: list[str]) -> None:
        self.runtime, self.buffer, self.name = runtime, buffer, runtime.name
        self.version = 0  # updates so far; the servers report it with every action
        self.learnt: list[Learnt] = []  # updates finished since the last `metrics`
        self.dropped = 0  # rows dropped since then, too stale
        self.future: Future[tuple[list[str], Learnt]] | None = None  # of the running update: what it spends
        self._stream, self._spent = stream, spent

    def begin(self, oldest: int | None) -> None:
        """Start an update if one may start. `oldest`: oldest version of this policy among tasks in flight."""
        bound = self.buffer.max_staleness
        if self.future or not self.buffer.full or (oldest is not None and self.version + 1 - oldest > bound):
            return
        rows, dropped = self.buffer.take(self.version)
        self.dropped += len(dropped)
        self._spent += [row.key for row in dropped]
        if rows:
            version = self.version
            self.future = self._stream.beside(f"update-{self.name}", lambda: self._work(rows, version))

    def estimate_missing(self) -> int:
        """Number of tasks to sample for the next update; negative: tasks that wait while an update is running."""
        return -self.buffer.tasks if self.future else self.buffer.estimate_missing()

    def end(self) -> None:
        """Collect the update if it has finished. Raises the exception of a failed update."""
        if self.future is None or not self.future.done():
            return
        done, self.future = self.future, None
        spent, learnt = done.result()
        self.version += 1
        self._spent += spent
        self.learnt.append(learnt)

    def _work(self, rows: list[Waiting], version: int) -> tuple[list[str], Learnt]:
        """Update at `version` and sync weights."""
        batch = Rows([row.key for row in rows], [dict(row.tag) for row in rows])
        # servers that sleep during training accept no requests meanwhile
        if self.runtime.sleeps:
            self._stream.gate(self.name, "close")
            self.runtime.sleep()
        size = self.buffer.batch
        part, values = self.runtime.update(batch, updates=None if size is None else len(rows) // size)
        updated = time.monotonic()
        if not self.runtime.sleeps:
            self._stream.gate(self.name, "close")
        self.runtime.sync(version + 1)
        self._stream.gate(self.name, "open")
        values["sync_seconds"] = time.monotonic() - updated
        return [*batch.keys, *part.keys], (values, [version - row.version for row in rows])

    def metrics(self) -> dict[str, float]:
        """`policy/NAME/...` since the last call: means over the finished updates, and row counts."""
        learnt, self.learnt = self.learnt, []
        dropped, self.dropped = self.dropped, 0
        metrics = averages(values for values, _ in learnt)
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


class Asynchronous:
    """The schedule `async` of a `Trainer`; `rollouts` is a `Stream`. A step raises the error of an update."""

    def __init__(self, trainer: Any, rollouts: Any) -> None:
        self.trainer, self.rollouts = trainer, rollouts
        self._spent = list[str]()  # rows to remove from the store, each once
        settings, self._size = marl_of(trainer.config).schedule, int(trainer.config.data.train_batch_size)
        limits = settings.fill, settings.batch, settings.max_staleness, self._size
        self.learners = {
            runtime.name: Learner(runtime, Buffer(*limits), rollouts, self._spent)
            for runtime in trainer.policies.trained
        }
        self._ahead = settings.ahead * self._size
        # step 0: the episodes of a task are kept whatever step it is finished in, and `_trim` removes those not stored
        self._dispatch = Dispatch(lambda: trainer.data.next(0), self._size + self._ahead)
        self._arrived: deque[Report] = deque()

    def step(self, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Sample and learn until `train_batch_size` more tasks are finished; otherwise as `Synchronous.step`."""
        trainer, reports = self.trainer, list[Report]()
        with trainer.phase("sampling and learning"):
            while len(reports) < self._size and not (reports and reports[-1].error):
                self._learn()
                # those that the update of the slowest policy lacks, and those ahead of it
                lacking = min((learner.estimate_missing() for learner in self.learners.values()), default=self._size)
                self._dispatch.fill(self.rollouts, self.versions(), self._ahead + lacking)
                with timed(seconds, "gen"):
                    self._arrived.extend([] if self._arrived else self.rollouts.finished(self._updates()))
                with timed(seconds, "advantage"):
                    while self._arrived and len(reports) < self._size:
                        reports.append(self._arrived.popleft())
                        self._buffer(reports[-1])
                        self._dispatch.done(reports[-1].uid)
                        self._learn()  # start updates without waiting for the rest of the finished tasks
            trainer.keep([self._trim(report) for report in reports])
            if trainer.step >= trainer.steps:  # include the remaining updates in the last step's metrics and weights
                self._learn()
                while self._updates():
                    self.settle()
                    self._learn()
        table = trainer.algorithm.credited(in_key_order(reports, trainer.declared)[1])
        # advantages do not depend on other tasks (`check_schedule`)
        metrics, _ = trainer.stored(table, trainer.algorithm.compute(table))
        for learner in self.learners.values():
            metrics |= learner.metrics()
        for count in ("updates", "trained_rows", "stale_dropped", "buffer_rows"):
            metrics[f"train/{count}"] = sum(metrics[f"policy/{name}/{count}"] for name in self.learners)
        used = list(dict.fromkeys(self._spent))
        self._spent.clear()
        return metrics | {"train/in_flight": float(len(self._dispatch))}, used

    def _trim(self, report: Report) -> Report:
        """A report without the lines of its episodes, but with its failures, if this step's journal is not stored."""
        if not self.trainer.records.keeps(self.trainer.step, 0):
            report.lines = sample_lines(Sample(failures=report.failures), report.uid, report.task, tokens=False)
        return report

    def _updates(self) -> list[Future[Any]]:
        """The updates that are running, or finished and not collected."""
        return [learner.future for learner in self.learners.values() if learner.future]

    def _learn(self) -> None:
        """Collect finished updates and start those that can start."""
        for learner in self.learners.values():
            learner.end()
        for learner in self.learners.values():
            learner.begin(self._dispatch.oldest(learner.name))

    def _buffer(self, report: Report) -> None:
        """Compute the advantages of a finished task, and add each row to the buffer of its policy."""
        if not report.rows:  # every attempt failed
            return
        batch, table = in_key_order([report], self.trainer.declared)
        result = self.trainer.algorithm.compute(table)
        put_advantages(self.trainer.store, batch, result, self.learners)
        signal = self.trainer.signal(table, result)
        learnt = range(len(batch)) if signal is None else set(signal.rows)
        for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            if (learner := self.learners.get(tag["policy"])) is None:
                continue
            if row in learnt:
                learner.buffer.add([Waiting(key, tag, int(tag["version"]))])
            else:
                self._spent.append(key)

    def versions(self) -> dict[str, int]:
        """Policy -> version of its weights: the number of its updates; 0 for a frozen policy."""
        versions = {name: learner.version for name, learner in self.learners.items()}
        return {**dict.fromkeys(self.trainer.policies.runtimes, 0), **versions}

    def sync(self, seconds: dict[str, float]) -> None:
        """Each update has synced its weights."""

    def settle(self) -> None:
        """Wait until no update or weight sync is running. Sampling continues; finished tasks are left for `step`."""
        while futures := self._updates():
            wait(futures, return_when=FIRST_EXCEPTION)
            for learner in self.learners.values():
                learner.end()

    def state(self) -> dict[str, Any]:
        """The state for `restore`; call `settle` first. Finished tasks that `step` has not processed are in flight."""
        keys = [row.key for learner in self.learners.values() for row in learner.buffer.rows]
        stored = self.trainer.store.get(keys, KEPT_FIELDS) if keys else {}
        columns = {name: column.unbind() for name, column in stored.items()}
        tensors = {key: {name: column[i].clone() for name, column in columns.items()} for i, key in enumerate(keys)}
        learners = {name: learner.state() for name, learner in self.learners.items()}
        return {"learners": learners, "tensors": tensors, "tasks": self._dispatch.state()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Continue from a `state`; None (a run that was synchronous before) starts with empty buffers."""
        if state is None:
            return
        for name, kept in state["learners"].items():
            self.learners[name].restore(kept)
        if tensors := state["tensors"]:
            columns = {name: [row[name] for row in tensors.values()] for name in KEPT_FIELDS}
            self.trainer.store.put(list(tensors), columns)
        self._dispatch.restore(state["tasks"])
