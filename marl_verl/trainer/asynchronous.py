"""Sampling and learning at the same time: each policy updates when its buffer is full, without waiting for the others.

    (1 + ahead) * train_batch_size tasks are under way                                          trainer/dispatch.py
    a task is finished: its rows get their advantage and go to the buffers of their policies     trainer/buffer.py
    a buffer is full:   its policy learns and syncs in a thread of its own                       trainer/learner.py

No new task is begun while a full buffer has rows of as many tasks as may be under way: a policy that learns too slowly
holds sampling back, and the rows that wait for it are bounded. A step of the run is `train_batch_size` finished tasks.

Rows are older than the weights that learn from them by a bounded number of updates, for which the loss corrects
(`config/schedule.py`). Which update sees which row depends on time, so that no run is repeatable to the digit.
Source: MARS2's asynchronous training (arXiv 2602.07848, authors' code), which throws a buffer's remainder away and
neither bounds nor reports staleness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, wait
from typing import TYPE_CHECKING, Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from marl_verl.advantage import Algorithm, RowTable
from marl_verl.advantage.mix import Mix
from marl_verl.advantage.rows import FloatArray
from marl_verl.config.schedule import settings_of
from marl_verl.credit.replay import ReplayCredit
from marl_verl.parts import metrics_of
from marl_verl.rollout.rows import UPDATE_FIELDS, identity
from marl_verl.trainer import metrics as team_metrics
from marl_verl.trainer.buffer import Buffer, Waiting
from marl_verl.trainer.dispatch import Dispatch, Task
from marl_verl.trainer.learner import Learner

if TYPE_CHECKING:
    from marl_verl.rollout.worker import Done
    from marl_verl.trainer.team_trainer import TeamTrainer

PARTITION = "train"
KEPT_FIELDS = (*UPDATE_FIELDS, "rollout_log_probs")
"""Of a row that waits: what an update reads, and what the importance correction does."""


class Asynchronous:
    """The schedule `async` (`marl.schedule`).

    It belongs to the trainer's thread. An error in the thread of an update is raised by the step that it falls into, as
    soon as it happens.
    """

    def __init__(self, trainer: TeamTrainer) -> None:
        self.trainer = trainer
        settings, self._size = settings_of(trainer.config), int(trainer.config.data.train_batch_size)
        self.learners = {
            runtime.name: Learner(runtime, Buffer(settings.fill, settings.batch, settings.max_staleness))
            for runtime in trainer.trained()
        }
        self._dispatch = Dispatch(self._fetch, (1 + settings.ahead) * self._size)
        self._arrived: deque[Done] = deque()
        self._spent: dict[str, dict[str, Any]] = {}

    # -- a step --------------------------------------------------------------------------------------------------

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """Until `train_batch_size` tasks have been finished since the last step.

        Returns:
            The rows that are done with since then: learnt from, too stale, or of policies that do not learn.
        """
        trainer, times = self.trainer, team_metrics.Stopwatch(timing_raw)
        done: list[Done] = []
        with trainer.phase("sampling and learning"):
            while len(done) < self._size and not (done and done[-1].report.error):
                self._learn()
                if not self._behind():
                    self._dispatch.fill(trainer.agent_loop_manager, self._versions())
                with times("gen"):
                    self._wait()
                with times("advantage"):
                    while self._arrived and len(done) < self._size:
                        done.append(self._arrived.popleft())
                        self._take_in(done[-1])
                        self._learn()  # many may have arrived at once: a buffer need not wait for the last of them
            trainer.take_reports([each.report for each in done])
            if trainer.global_steps >= trainer.total_training_steps:
                self.settle()  # what is learnt in the last step belongs to its metrics and its weights
        rows = sorted(zip(_all(done, "keys"), _all(done, "tags"), strict=True), key=lambda row: _order(row[0]))
        table = RowTable.from_rows([identity(tag) for _, tag in rows])
        result = trainer.algorithm.compute(table)  # as each task by itself had it: `check_schedule`
        trainer.store_rows(table, result)
        credited = trainer.algorithm.credited(table)
        metrics.update(team_metrics.team_metrics(credited, result, trainer.reports, metrics_of(trainer.algorithm)))
        metrics.update(self._metrics())
        # the tasks themselves are in TransferQueue too
        return self._clear([each.report.uid for each in done])

    def _wait(self) -> None:
        """Until a task or an update has ended."""
        if not self._arrived:
            updates = [learner.future for learner in self.learners.values() if learner.future]
            wait([*self.trainer.agent_loop_manager.waiting(), *updates], return_when=FIRST_COMPLETED)
        self._arrived.extend(self.trainer.agent_loop_manager.finished())

    def _learn(self) -> None:
        """Note updates that have ended, and begin those that can."""
        for learner in self.learners.values():
            learner.end()
        for learner in self.learners.values():
            learner.begin(self.trainer.agent_loop_manager, self._dispatch.oldest(learner.name))

    def _behind(self) -> bool:
        """Whether a policy has so much to learn from that sampling has to wait for it."""
        buffers = [learner.buffer for learner in self.learners.values()]
        return any(buffer.full and buffer.tasks >= self._dispatch.limit for buffer in buffers)

    def _take_in(self, done: Done) -> None:
        """Give a finished task's rows their advantage, and each to its policy's buffer."""
        self._dispatch.done(done.report.uid)
        if not done.keys:
            return  # every attempt failed
        advantage = advantages(self.trainer.algorithm, done.tags)
        batch = KVBatchMeta(partition_id=PARTITION, keys=done.keys, tags=done.tags)
        self.trainer.write_advantages(batch, advantage)
        for key, tag in zip(done.keys, done.tags, strict=True):
            learner = self.learners.get(tag["policy"])
            if learner is None:
                self._spent[key] = tag
            else:
                learner.buffer.add([Waiting(key, tag, int(tag["min_global_steps"]))])

    def _versions(self) -> dict[str, int]:
        return {name: learner.version for name, learner in self.learners.items()}

    def _fetch(self) -> list[Task]:
        batch = self.trainer._fetch_one_gen_batch()
        columns = {name: list(batch[name]) for name in batch.keys()}  # noqa: SIM118 - not a mapping
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _metrics(self) -> dict[str, float]:
        """Of every policy, and in all."""
        found: dict[str, float] = {"train/in_flight": float(len(self._dispatch))}
        own = {name: learner.metrics() for name, learner in self.learners.items()}
        for count in ("updates", "trained_rows", "stale_dropped", "buffer_rows"):
            found[f"train/{count}"] = sum(values[f"policy/{name}/{count}"] for name, values in own.items())
        for values in own.values():
            found.update(values)
        return found

    def _clear(self, uids: list[str]) -> KVBatchMeta:
        """The rows that can leave TransferQueue; each is told once."""
        spent, self._spent = self._spent, {}
        for learner in self.learners.values():
            spent.update(learner.spent)
            learner.spent = {}
        return KVBatchMeta(partition_id=PARTITION, keys=[*spent, *uids], tags=[*spent.values(), *({} for _ in uids)])

    # -- between steps -------------------------------------------------------------------------------------------

    def on_step_end(self) -> None:
        """Nothing: every update syncs its policy."""
        return None

    def version(self, policy: str) -> int:
        """Of a policy's weights: what its servers say with every action. 0 for one that does not learn."""
        return self.learners[policy].version if policy in self.learners else 0

    def settle(self) -> None:
        """Wait until no update and no sync is under way. Sampling goes on, and nobody looks at what is finished."""
        while futures := [learner.future for learner in self.learners.values() if learner.future]:
            wait(futures, return_when=FIRST_EXCEPTION)
            for learner in self.learners.values():
                learner.end()

    def state(self) -> dict[str, Any]:
        """What a checkpoint has to keep: rows in buffers with their tensors, versions, tasks under way, counters.

        Settled before. Tasks that are finished and not taken in yet count as under way.
        """
        keys = [row.key for learner in self.learners.values() for row in learner.buffer.rows]
        return {
            "learners": {name: learner.state() for name, learner in self.learners.items()},
            "tensors": read_tensors(keys),
            "tasks": self._dispatch.state(),
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from what `state` gave; None (of a run that was synchronous so far) begins with empty buffers."""
        if state is None:
            return
        for name, kept in state["learners"].items():
            self.learners[name].restore(kept)
        rows = [row for learner in self.learners.values() for row in learner.buffer.rows]
        write_tensors([state["tensors"][row.key] for row in rows], [row.key for row in rows], [row.tag for row in rows])
        self._dispatch.restore(state["tasks"])


def advantages(algorithm: Algorithm, tags: Sequence[dict[str, Any]]) -> FloatArray:
    """[n] advantages of one task's rows, from their tags.

    A mix with named components refuses one that no row has, which in a single task can be by chance (the agent with the
    role reward did not act). A made-up row of a task of its own, of nobody, then stands for the rest of the batch.
    """
    rows = [identity(tag) for tag in tags]
    missing = _components(algorithm) - {name for row in rows for name in row["rewards"]}
    if missing:
        alone = {**rows[0], "uid": "nobody", "agent": "nobody", "parent": None, "index": 0, "session": 0}
        rows.append({**alone, "rewards": {**rows[0]["rewards"], **dict.fromkeys(missing, 0.0)}})
    return algorithm.compute(RowTable.from_rows(rows)).advantage[: len(tags)]


def _components(algorithm: Algorithm) -> set[str]:
    """Reward components that sampling makes and the mix names."""
    mix, credit = algorithm.rewards, algorithm.credit
    made = {"team", "role", *mix.asks(), *((credit.component,) if isinstance(credit, ReplayCredit) else ())}
    return made & set(mix.weights or ()) if isinstance(mix, Mix) else set()


def read_tensors(keys: list[str]) -> dict[str, dict[str, Any]]:
    """Key -> field -> tensor, out of TransferQueue."""
    if not keys:
        return {}
    rows = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=list(KEPT_FIELDS))
    columns = {name: rows[name].unbind() for name in KEPT_FIELDS}
    return {key: {name: column[i].clone() for name, column in columns.items()} for i, key in enumerate(keys)}


def write_tensors(fields: list[dict[str, Any]], keys: list[str], tags: list[Any]) -> None:
    """What `read_tensors` took, back into TransferQueue."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    if keys:
        tq.kv_batch_put(
            keys=keys,
            partition_id=PARTITION,
            fields=list_of_dict_to_tensordict(fields),
            tags=[dict(tag) for tag in tags],
        )


def _all(done: list[Done], name: str) -> list[Any]:
    return [value for each in done for value in getattr(each, name)]


def _order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.split("_")
    return uid, int(session), int(index)
