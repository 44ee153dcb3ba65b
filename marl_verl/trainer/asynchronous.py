"""The asynchronous schedule: sampling and learning overlap, and each policy updates when its own buffer is full.

    in flight are the tasks that the next update lacks, and ahead * train_batch_size more
    a task is finished: compute the advantages of its rows, add each row to the buffer of its policy
    a buffer is full:   its policy updates and syncs weights in a separate thread                trainer/learner.py

Backpressure: of the tasks that are sampled ahead of an update, those whose rows wait in the buffer count, too. With
`ahead` 0 no task is sampled while a policy updates, so that every row is on-policy. A policy that learns slowly holds
sampling, and its buffer stays small. A step of the run is `train_batch_size` finished tasks.

The staleness of a row (updates between sampling and learning) is bounded, and the loss corrects for it
(`config/schedule.py`). Which update uses which row depends on timing, so runs are not reproducible bit for bit.
Source: MARS2's asynchronous training (arXiv 2602.07848, authors' code), which discards a buffer's remainder and
neither bounds nor reports staleness.
"""

import itertools
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, wait
from typing import Any

from omegaconf import DictConfig

from marl_verl.backend.learning.batches import KEPT_FIELDS, put_advantages
from marl_verl.backend.protocol import Done, Report, Stream
from marl_verl.config.schedule import settings_of
from marl_verl.events import timed
from marl_verl.trainer.learner import Buffer, Learner, Waiting
from marl_verl.trainer.sampling import Schedule, in_key_order

Task = dict[str, Any]  # a row of `TaskData.next`, and `batch`, the number of its data batch, from 1


class Dispatch:
    """Keeps up to `limit` tasks in flight, from their dispatch until the trainer has processed their rows. `fetch`
    returns the next batch of the data and never runs out.

    A checkpoint stores the tasks in flight and those fetched but not dispatched, which a resumed run dispatches again
    with the same uids: every task of the data is used once.
    """

    def __init__(self, fetch: Callable[[], list[Task]], limit: int) -> None:
        self.limit, self._fetch, self._batches = limit, fetch, 0
        self._next: deque[Task] = deque()
        self._out: dict[str, tuple[Task, Mapping[str, int]]] = {}  # with the policy versions at its dispatch

    def __len__(self) -> int:
        return len(self._out)

    def fill(self, workers: Stream, versions: Mapping[str, int], count: int) -> None:
        """Dispatch tasks until `count` are in flight, at most `limit`. `versions`: policy -> current version."""
        new = [self._take() for _ in range(min(count, self.limit) - len(self))]
        for task in new:
            self._out[task["uid"]] = task, dict(versions)
        for batch, tasks in itertools.groupby(new, key=lambda task: task["batch"]):
            workers.dispatch([{name: task[name] for name in task if name != "batch"} for task in tasks], batch)

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
                uid = f"s{self._batches}t{position:05d}"
                self._next.append({**task, "uid": uid, "batch": self._batches})
        return self._next.popleft()


class Asynchronous(Schedule):
    """The schedule `async` of a `Trainer`. A step raises the error of an update's thread."""

    def __init__(self, trainer: Any, config: DictConfig) -> None:
        self.trainer = trainer
        settings, self._size = settings_of(config), int(config.data.train_batch_size)
        self.learners = {
            runtime.name: Learner(runtime, Buffer(settings.fill, settings.batch, settings.max_staleness, self._size))
            for runtime in trainer.policies.trained
        }
        self._ahead = settings.ahead * self._size
        self._dispatch = Dispatch(lambda: trainer.data.next(trainer.step), self._size + self._ahead)
        self._arrived: deque[Done] = deque()
        self._spent: list[str] = []  # rows that no update uses

    def step(self, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Sample and learn until `train_batch_size` more tasks are finished."""
        trainer, finished, reports = self.trainer, list[Done](), list[Report]()
        with trainer.phase("sampling and learning"):
            while len(reports) < self._size and not (reports and reports[-1].error):
                self._learn()
                # those that the update of the slowest policy lacks, and those ahead of it
                lacking = min((learner.missing for learner in self.learners.values()), default=self._size)
                self._dispatch.fill(trainer.rollouts, self.versions(), self._ahead + lacking)
                with timed(seconds, "gen"):
                    if not self._arrived:
                        updates = [learner.future for learner in self.learners.values() if learner.future]
                        wait([*trainer.rollouts.waiting(), *updates], return_when=FIRST_COMPLETED)
                    self._arrived.extend(trainer.rollouts.finished())
                with timed(seconds, "advantage"):
                    while self._arrived and len(reports) < self._size:
                        finished.append(self._arrived.popleft())
                        self._buffer(finished[-1])
                        reports += finished[-1].reports
                        self._dispatch.done(reports[-1].uid)
                        self._learn()  # start updates without waiting for the rest of the finished tasks
            trainer.sampling.keep(reports)
            if trainer.step >= trainer.steps:  # include the remaining updates in the last step's metrics and weights
                self._learn()
                while any(learner.future for learner in self.learners.values()):
                    self.settle()
                    self._learn()
        table = trainer.algorithm.credited(in_key_order(finished, trainer.declared)[1])
        result = trainer.algorithm.compute(table)  # advantages do not depend on other tasks (`check_schedule`)
        metrics = trainer.stored(table, result)
        if (signal := trainer.sampling.signal(table, result)) is not None:
            metrics |= signal.metrics()
        for learner in self.learners.values():
            metrics |= learner.metrics()
        for count in ("updates", "trained_rows", "stale_dropped", "buffer_rows"):
            metrics[f"train/{count}"] = sum(metrics[f"policy/{name}/{count}"] for name in self.learners)
        return metrics | {"train/in_flight": float(len(self._dispatch))}, self._used()

    def _learn(self) -> None:
        """Collect finished updates and start those that can start."""
        for learner in self.learners.values():
            learner.end()
        for learner in self.learners.values():
            learner.begin(self.trainer.rollouts, self._dispatch.oldest(learner.name))

    def _buffer(self, done: Done) -> None:
        """Credit a finished task, compute its advantages, and add each row to the buffer of its policy."""
        if not done.records:  # every attempt failed
            return
        batch, table = in_key_order([done], self.trainer.declared)
        result = self.trainer.algorithm.compute(table)
        put_advantages(self.trainer.store, batch, result, self.learners)
        signal = self.trainer.sampling.signal(table, result)
        learnt = range(len(batch)) if signal is None else set(signal.rows)
        for row, (key, tag) in enumerate(zip(batch.keys, batch.tags, strict=True)):
            if (learner := self.learners.get(tag["policy"])) is None:
                continue
            if row in learnt:
                learner.buffer.add([Waiting(key, tag, int(tag["version"]))])
            else:
                self._spent.append(key)

    def _used(self) -> list[str]:
        """Rows to remove from the store, each returned once: used in an update, too stale, or not trained on."""
        used, self._spent = self._spent, []
        for learner in self.learners.values():
            used += learner.spent
            learner.spent = []
        return list(dict.fromkeys(used))

    def versions(self) -> dict[str, int]:
        """Policy -> version of its weights: the number of its updates; 0 for a frozen policy."""
        versions = {name: learner.version for name, learner in self.learners.items()}
        return {**dict.fromkeys(self.trainer.policies.runtimes, 0), **versions}

    def settle(self) -> None:
        """Wait until no update or weight sync is running. Sampling continues; finished tasks are left for `step`."""
        while futures := [learner.future for learner in self.learners.values() if learner.future]:
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
