"""The team's training loop: verl's `PPOTrainer`, with a runtime for each policy and one advantage over the whole team.

`fit` of the base class calls the methods below in this order; `Synchronous.step` and `Asynchronous.step` are a step:

    _setup, _load_checkpoint, on_init_end      before the first step: data, checkpoint, weights to the servers
    _validate
    step                                       draw tasks, sample, advantages, update        (of the schedule)
    _save_checkpoint, on_step_end              write a checkpoint, sync weights
    _validate
    _compute_metrics                           record metrics, commit the checkpoint

Uses verl internals: the methods of `PPOTrainer` overridden below, and its `fit`, which calls them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from omegaconf import open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn

from marl_verl import plugins
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.backend.verl.batches import PARTITION
from marl_verl.backend.verl.memory import AdvantageMemory
from marl_verl.backend.verl.rollout.worker import Done, Report
from marl_verl.config.parts import algorithm_of
from marl_verl.config.stored import team_of
from marl_verl.config.task_choice import curriculum_of, filter_of
from marl_verl.events import Phases, emit, timed
from marl_verl.extensions import extension
from marl_verl.run import trackers
from marl_verl.run.checkpoint.team import Checkpoints
from marl_verl.run.records import Records
from marl_verl.run.run_dir import RunDir
from marl_verl.trainer.asynchronous import Asynchronous
from marl_verl.trainer.curriculum import Curriculum
from marl_verl.trainer.filtering import Signal
from marl_verl.trainer.metrics import team_metrics
from marl_verl.trainer.policies import Policies
from marl_verl.trainer.schedule import Schedule, Synchronous, in_key_order
from marl_verl.trainer.validation import play, validation_metrics


@register_trainer("team")
class TeamTrainer(PPOTrainer):
    """The trainer of a team. Its schedule decides when it samples and when it learns."""

    def __init__(self, config: Any) -> None:
        self.team = team_of(config)
        self.run_dir = RunDir(Path(config.marl.run.folder))
        self.algorithm = algorithm_of(self.team)
        self.records = Records(config, self.team, self.algorithm, self.run_dir)
        self.memory = AdvantageMemory(self.algorithm)
        self.reports: list[Report] = []  # of the step
        self.filter = filter_of(config)
        self.curriculum: Curriculum | None = None
        self.drawn: list[int] = []  # the tasks of the step, by number
        self.refills = 0
        super().__init__(config)
        # verl treats any name except "sync" as an asynchronous mode
        self.trainer_mode = "sync"
        self.phase = Phases(lambda: getattr(self, "global_steps", 0))
        self.policies = Policies(self.config, self.team)
        self.past: Any = None  # the past versions of policies with which agents act, of a distribution
        if settings := list(self.team.past.values()):
            kind = extension("policy", settings[0].kind)
            self.past = kind.Past(self.config, self.team, self.policies, self.run_dir.folder)
        sync = self.config.marl.schedule.mode == "sync"
        self.schedule: Schedule = Synchronous(self) if sync else Asynchronous(self, self.config)

    def _build_replay_buffer(self) -> None:
        """None: rollout workers return the keys of a task's rows when it is finished."""

    def _setup(self) -> None:
        """verl's setup without the workers, which `Policies.start` has started, and without a reward loop."""
        self._init_tokenizer()
        if self.filter is not None and isinstance(self.schedule, Synchronous):  # a refill draws any number of tasks
            with open_dict(self.config):
                self.config.data.gen_batch_size = 1
        self._init_dataloader()
        self._init_dump_executor()
        self.reward_loop_manager = self.teacher_model_manager = None
        parts: dict[str, Any] = {f"policies/{runtime.name}": runtime for runtime in self.policies.trained}
        parts |= {f"critics/{name}": critic for name, critic in self.policies.critics.runtimes.items()}
        if (settings := curriculum_of(self.config)) is not None:
            ids = [json.loads(row)["id"] for row in self.train_dataset.rows]
            parts["curriculum"] = self.curriculum = Curriculum(settings, ids, int(self.config.marl.run.seed))
        if self.algorithm.advantage.remembers:
            parts["advantage"] = self.memory
        if self.past is not None:
            parts[self.past.folder] = self.past
        folder = self.run_dir.folder
        self.checkpoints = Checkpoints(self.config, folder, parts, self.train_dataloader, self.schedule)
        self._load_checkpoint()

    def _load_checkpoint(self) -> None:
        self.global_steps = self.checkpoints.load()
        if self.global_steps:
            self.run_dir.forget_after(self.global_steps)

    def on_init_end(self) -> None:
        """Sync weights to the servers of trained policies: verl may start them with dummy weights."""
        self.policies.sync_weights(self.schedule.versions())

    def on_train_begin(self) -> None:
        trackers.begin(self.logger, trackers.names_of(self.config), self.global_steps)

    def on_step_begin(self) -> None:
        trackers.flush(self.logger)

    # A step

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> KVBatchMeta:
        batch = self.schedule.step(metrics, timing_raw)
        if self.past is not None:
            with timed(timing_raw, "snapshot"), self.phase("writing a snapshot"):
                self.past.take(self.global_steps)
        # `fit` removes these rows from TransferQueue, whose client refuses an empty list
        return batch if batch.keys else KVBatchMeta(partition_id=PARTITION, keys=["none"], tags=[{}])

    def next_tasks(self) -> list[dict[str, Any]]:
        """The next batch of the data, a row for each task: the columns of `TaskDataset`, `uid` and `keep`."""
        batch = self._fetch_one_gen_batch()
        columns = {name: list(batch[name]) for name in batch.keys()}  # noqa: SIM118 - not a mapping
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def _fetch_one_gen_batch(self) -> TensorDict:
        """verl's batch, with uids that are equal in all runs of the same config."""
        return self._identified(super()._fetch_one_gen_batch(), 0)

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        """The next tasks of a step: the data's next ones, or those of the curriculum; none that the step has had."""
        if self.filter is None and self.curriculum is None:
            return super()._next_train_batch(num_prompts)
        count, first = num_prompts or int(self.config.data.train_batch_size), len(self.drawn)
        if self.curriculum is not None:
            self.drawn += self.curriculum.draw(self.global_steps, count, self.drawn)
        while len(self.drawn) < first + count:
            (number,) = map(int, super()._fetch_one_gen_batch()["index"])
            if number not in self.drawn:  # else the next epoch has begun
                self.drawn.append(number)
        rows = [self.train_dataset[number] for number in self.drawn[first:]]
        batch = self._identified(tu.get_tensordict(collate_fn(rows)), first)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _identified(self, batch: TensorDict, first: int) -> TensorDict:
        """The batch with the uids of tasks, which are at positions from `first` of the step."""
        step, positions = self.global_steps, range(first, first + len(batch))
        tu.assign_non_tensor_stack(batch, "uid", [f"s{step}t{position:05d}" for position in positions])
        tu.assign_non_tensor_stack(batch, "keep", [self.records.keeps(step, position) for position in positions])
        return batch

    def sample(self) -> tuple[KVBatchMeta, RowTable]:
        """Sample the tasks of a step and wait. Returns its rows in key order.

        With a filter, further tasks are sampled for those that teach nothing, up to `refill` times.
        """
        self.reports, self.drawn, self.refills = [], [], 0
        size = int(self.config.data.train_batch_size)
        done = self._sample(size)
        for _ in range(self.filter.refill if self.filter is not None else 0):
            missing = min(size - self._useful_tasks(done), len(self.train_dataset) - len(self.drawn))
            if not missing:
                break
            self.refills += 1
            done += self._sample(missing)
        for part in (self.curriculum, self.past):
            if part is not None:
                part.record(self.reports)
        # where servers and training share a GPU, the servers free its memory until the weights are synced
        self.policies.sleep()
        return in_key_order(done)

    def _sample(self, count: int) -> list[Done]:
        """Sample further tasks of the step and wait. With past versions, in a round for each snapshot."""
        tasks, done = self._next_train_batch(count), list[Done]()
        rounds: list[tuple[Mapping[str, int], TensorDict]] = [({}, tasks)]
        if self.past is not None:
            met = self.past.rounds([str(uid) for uid in tasks["uid"]])
            rounds = [(snapshots, tu.index_select_tensor_dict(tasks, positions)) for snapshots, positions in met]
        for snapshots, prompts in rounds:
            self._use_snapshots(snapshots)
            self.agent_loop_manager.generate_sequences(prompts)
            done += self.agent_loop_manager.collect()
        self.store_reports([*self.reports, *(report for share in done for report in share.reports)])
        return done

    def _use_snapshots(self, snapshots: Mapping[str, int]) -> None:
        """Load snapshots (policy -> step) into the servers of past versions."""
        if snapshots:
            with self.phase("loading snapshots"):
                self.past.use(snapshots)

    def _useful_tasks(self, done: list[Done]) -> int:
        """Number of tasks of the step with something to learn from; a task without rows has failed."""
        if not any(share.keys for share in done):
            return 0
        _, table = in_key_order(done)
        table = self.memory.recall(self.algorithm.credited(table), keep=False)
        signal = self.signal(table, self.algorithm.compute(table))
        return len(signal.tasks) if signal is not None else 0

    def signal(self, table: RowTable, result: AdvantageResult) -> Signal | None:
        """The rows to train on; None without a filter: all."""
        if self.filter is None:
            return None
        return Signal.of(table, result, self.policies.learning, self.filter.above, self.filter.below)

    def store_reports(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks. MarlError if too many failed."""
        self.reports = reports
        self.records.journals(self.global_steps, reports)

    def store_rows(self, table: RowTable, result: AdvantageResult) -> dict[str, float]:
        """Store how a step's advantages were computed. Returns the step's metrics of team and agents."""
        self.records.rows(self.global_steps, table, result)
        values = team_metrics(table, result, self.reports, self.algorithm.metrics)
        if self.filter is not None and self.drawn:
            values |= {"filter/refill_rounds": float(self.refills), "filter/tasks": float(len(self.drawn))}
        for part in (self.curriculum, self.past):
            values |= part.metrics() if part is not None else {}
        return values

    # After a step

    def on_sample_end(self) -> None:
        """Nothing: abstract in the base class."""

    def _save_checkpoint(self) -> None:
        self.schedule.settle()
        with self.phase("writing a checkpoint"):
            self.checkpoints.write(self.global_steps)

    def on_step_end(self) -> None:
        self.schedule.on_step_end(self.timing_raw)

    def _validate(self) -> dict[str, float]:
        """Run every held-out task twice: with greedy decoding, then with the sampling parameters of training."""
        self.schedule.settle()
        self._use_snapshots(self.past.newest() if self.past is not None else {})
        with self.phase("validating"):
            keep = int(self.config.marl.rollout.keep_episodes)
            passes = partial(play, self.val_dataloader, self.agent_loop_manager, self.global_steps)
            greedy = list(chain.from_iterable(passes(sampled=False, keep=keep)))
            sampled = list(chain.from_iterable(passes(sampled=True, keep=0)))
            if lines := [line for report in greedy + sampled for line in report.lines]:
                self.records.episodes(self.global_steps, lines)
            self.records.check_failures(greedy + sampled)
        values = validation_metrics(greedy, sampled)
        emit("validation", step=self.global_steps, metrics=values, tasks=len(greedy))
        self.run_dir.metrics(self.global_steps, values)
        return values

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, Any], global_steps: int, epoch: int
    ) -> None:
        values = {name: float(value) for name, value in metrics.items() if not name.startswith("validation/")}
        values.update({f"seconds/{name}": float(value) for name, value in timing_raw.items()})
        self.run_dir.metrics(global_steps, values)
        metrics.update(values)  # verl sends them to the trackers
        emit("step", step=global_steps, steps=self.total_training_steps, metrics=values)
        plugins.load().hook.marl_step_finished(step=global_steps, metrics=values)
        self.checkpoints.commit(self.global_steps)
        if self.past is not None:
            self.past.discard()
