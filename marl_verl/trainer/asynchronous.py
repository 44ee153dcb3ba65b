"""Sampling and learning at the same time: each policy updates when its buffer is full, without waiting for the others.

    (1 + ahead) * train_batch_size tasks are under way
    a task is finished: its rows get their advantage and go to the buffers of their policies
    a buffer is full:   its policy learns and syncs in a thread of its own                       trainer/learner.py

No new task is begun while a full buffer has rows of as many tasks as may be under way: a policy that learns too slowly
holds sampling back, and the rows that wait for it are bounded. A step of the run is `train_batch_size` finished tasks.

Rows are older than the weights that learn from them by a bounded number of updates, for which the loss corrects
(`config/schedule.py`). Which update sees which row depends on time, so that no run is repeatable to the digit.
Source: MARS2's asynchronous training (arXiv 2602.07848, authors' code), which throws a buffer's remainder away and
neither bounds nor reports staleness.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, wait
from typing import Any

from omegaconf import DictConfig
from transfer_queue import KVBatchMeta

from marl_verl.advantage import RowTable
from marl_verl.advantage.rows import FloatArray
from marl_verl.algorithms import Algorithm
from marl_verl.config.schedule import settings_of
from marl_verl.rollout.manager import TeamRolloutManager
from marl_verl.rollout.rows import identity
from marl_verl.rollout.worker import Done
from marl_verl.trainer.batches import PARTITION, read_tensors, row_order, write_tensors
from marl_verl.trainer.learner import Buffer, Learner, Waiting
from marl_verl.trainer.metrics import timed
from marl_verl.trainer.schedule import Schedule, Task, Training


class Dispatch:
    """Keeps `limit` tasks under way, from batches of the data that `fetch` gives without end.

    A task is under way from when it is handed out until the trainer has dealt with its rows. A checkpoint keeps those
    under way and those that were read from the data and not handed out yet; a continued run hands them out again, under
    the same uids. So every task of the data counts once, however often a run is stopped.
    """

    def __init__(self, fetch: Callable[[], list[Task]], limit: int) -> None:
        self.limit, self._fetch, self._batches = limit, fetch, 0
        self._next: deque[Task] = deque()
        self._out: dict[str, tuple[Task, Mapping[str, int]]] = {}  # with the versions when it was handed out

    def __len__(self) -> int:
        return len(self._out)

    def fill(self, workers: TeamRolloutManager, versions: Mapping[str, int]) -> None:
        """Hand out tasks until there are `limit` under way. `versions` are those of every policy, now."""
        new = [self._take() for _ in range(self.limit - len(self))]
        for task in new:
            self._out[task["uid"]] = task, dict(versions)
        for batch, tasks in itertools.groupby(new, key=lambda task: task["batch"]):
            workers.dispatch([{name: task[name] for name in task if name != "batch"} for task in tasks], batch)

    def done(self, uid: str) -> None:
        """A task's rows have been dealt with. KeyError if it was not under way."""
        del self._out[uid]

    def oldest(self, policy: str) -> int | None:
        """The oldest version of a policy that a task under way may have rows of; None without such a task."""
        return min((versions[policy] for _, versions in self._out.values()), default=None)

    def state(self) -> dict[str, Any]:
        """What `restore` takes."""
        return {"batches": self._batches, "tasks": [*(task for task, _ in self._out.values()), *self._next]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from where `state` was taken: what was under way then is handed out first."""
        self._batches = int(state["batches"])
        self._next = deque(dict(task) for task in state["tasks"])
        self._out = {}

    def _take(self) -> Task:
        if not self._next:
            self._batches += 1
            for position, task in enumerate(self._fetch()):
                # numbered by batches of the data: several are read in one step, and a continued run goes on counting
                uid = f"s{self._batches}t{position:05d}"
                self._next.append({**task, "uid": uid, "batch": self._batches})
        return self._next.popleft()


class Asynchronous(Schedule):
    """The schedule `async`. An error in the thread of an update is raised at once by the step that it falls into."""

    def __init__(self, training: Training, config: DictConfig) -> None:
        self.training = training
        settings, self._size = settings_of(config), int(config.data.train_batch_size)
        self.learners = {
            runtime.name: Learner(runtime, Buffer(settings.fill, settings.batch, settings.max_staleness))
            for runtime in training.policies.trained
        }
        self._dispatch = Dispatch(training.next_tasks, (1 + settings.ahead) * self._size)
        self._arrived: deque[Done] = deque()
        self._spent: dict[str, dict[str, Any]] = {}

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        """Until `train_batch_size` tasks have been finished since the last step."""
        training, done = self.training, list[Done]()
        with training.phase("sampling and learning"):
            while len(done) < self._size and not (done and done[-1].report.error):
                self._learn()
                if not self._behind():
                    self._dispatch.fill(training.agent_loop_manager, self.versions())
                with timed(timing_raw, "gen"):
                    self._wait()
                with timed(timing_raw, "advantage"):
                    while self._arrived and len(done) < self._size:
                        done.append(self._arrived.popleft())
                        self._take_in(done[-1])
                        self._learn()  # many may have arrived at once: a buffer need not wait for the last of them
            training.store_reports([each.report for each in done])
            if training.global_steps >= training.total_training_steps:
                self.settle()  # what is learnt in the last step belongs to its metrics and its weights
        tags = {key: tag for each in done for key, tag in zip(each.keys, each.tags, strict=True)}
        table = RowTable.from_rows([identity(tags[key]) for key in sorted(tags, key=row_order)], training.components)
        # the advantages are those that each task had by itself (`check_schedule`)
        metrics.update(training.store_rows(table, training.algorithm.compute(table)))
        metrics.update(self._metrics())
        # the tasks themselves are in TransferQueue too
        return self._clear([each.report.uid for each in done])

    def _wait(self) -> None:
        """Until a task or an update has ended."""
        if not self._arrived:
            updates = [learner.future for learner in self.learners.values() if learner.future]
            wait([*self.training.agent_loop_manager.waiting(), *updates], return_when=FIRST_COMPLETED)
        self._arrived.extend(self.training.agent_loop_manager.finished())

    def _learn(self) -> None:
        """Note updates that have ended, and begin those that can."""
        for learner in self.learners.values():
            learner.end()
        for learner in self.learners.values():
            learner.begin(self.training.agent_loop_manager, self._dispatch.oldest(learner.name))

    def _behind(self) -> bool:
        """Whether a policy has so much to learn from that sampling has to wait for it."""
        buffers = [learner.buffer for learner in self.learners.values()]
        return any(buffer.full and buffer.tasks >= self._dispatch.limit for buffer in buffers)

    def _take_in(self, done: Done) -> None:
        """Give a finished task's rows their advantage, and each to its policy's buffer."""
        self._dispatch.done(done.report.uid)
        if not done.keys:
            return  # every attempt failed
        batch = KVBatchMeta(partition_id=PARTITION, keys=done.keys, tags=done.tags)
        found = advantages(self.training.algorithm, done.tags, self.training.components)
        self.training.policies.put_advantages(batch, found)
        for key, tag in zip(done.keys, done.tags, strict=True):
            if tag["policy"] in self.learners:
                self.learners[tag["policy"]].buffer.add([Waiting(key, tag, int(tag["min_global_steps"]))])
            else:
                self._spent[key] = tag

    def _metrics(self) -> dict[str, float]:
        """Of every policy, and in all."""
        found: dict[str, float] = {"train/in_flight": float(len(self._dispatch))}
        own = {key: value for learner in self.learners.values() for key, value in learner.metrics().items()}
        for count in ("updates", "trained_rows", "stale_dropped", "buffer_rows"):
            found[f"train/{count}"] = sum(own[f"policy/{name}/{count}"] for name in self.learners)
        return {**found, **own}

    def _clear(self, uids: list[str]) -> KVBatchMeta:
        """The rows that can leave TransferQueue, each once: learnt from, too stale, or not to be learnt from."""
        spent, self._spent = self._spent, {}
        for learner in self.learners.values():
            spent.update(learner.spent)
            learner.spent = {}
        return KVBatchMeta(partition_id=PARTITION, keys=[*spent, *uids], tags=[*spent.values(), *({} for _ in uids)])

    def versions(self) -> dict[str, int]:
        """Policy -> version of its weights: the number of its updates; 0 for one that does not learn."""
        versions = {name: learner.version for name, learner in self.learners.items()}
        return {**dict.fromkeys(self.training.policies.runtimes, 0), **versions}

    def settle(self) -> None:
        """Wait until no update and no sync is under way. Sampling goes on, and nobody looks at what is finished."""
        while futures := [learner.future for learner in self.learners.values() if learner.future]:
            wait(futures, return_when=FIRST_EXCEPTION)
            for learner in self.learners.values():
                learner.end()

    def state(self) -> dict[str, Any]:
        """Once settled; tasks that are finished and not taken in yet count as under way."""
        keys = [row.key for learner in self.learners.values() for row in learner.buffer.rows]
        learners = {name: learner.state() for name, learner in self.learners.items()}
        return {"learners": learners, "tensors": read_tensors(keys), "tasks": self._dispatch.state()}

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` gave; None (of a run that was synchronous so far) begins with empty buffers."""
        if state is None:
            return
        for name, kept in state["learners"].items():
            self.learners[name].restore(kept)
        rows = [row for learner in self.learners.values() for row in learner.buffer.rows]
        write_tensors([state["tensors"][row.key] for row in rows], [row.key for row in rows], [row.tag for row in rows])
        self._dispatch.restore(state["tasks"])


def advantages(algorithm: Algorithm, tags: Sequence[dict[str, Any]], declared: Collection[str]) -> FloatArray:
    """[n] advantages of one task's rows, which need not have every reward component that is declared."""
    return algorithm.compute(RowTable.from_rows([identity(tag) for tag in tags], declared)).advantage
