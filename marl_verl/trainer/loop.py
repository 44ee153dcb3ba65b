"""The training loop of a team, from top to bottom. `Trainer.fit` is the run, `Synchronous.step` a step of it:

    draw tasks      data.draw            the next tasks, or those of the curriculum
    sample          rollouts.sample      every task is played by the sampler; each turn becomes a row
    advantages      algorithm.compute    of all rows of the team together
    update          policies.update      each policy learns from its own rows
    checkpoint      checkpoints.write
    sync            policies.sync        the next actions come from the new weights
    validate        play                 held-out tasks, greedily and sampled
    metrics         run_dir.metrics

What plays, stores and computes is the backend (`backend/protocol.py`): Ray and vLLM, or this process.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from marl_verl import plugins
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.backend.learning.batches import put_advantages
from marl_verl.backend.policies import Policies
from marl_verl.backend.protocol import Backend, Report, Rows, TaskRow, tracking_of
from marl_verl.config.parts import algorithm_of
from marl_verl.config.schema import marl_of
from marl_verl.config.stored import marl_section, team_of
from marl_verl.events import Phases, emit, timed
from marl_verl.extensions import extension, states
from marl_verl.run import trackers
from marl_verl.run.checkpoint.team import Checkpoints
from marl_verl.run.records import Records
from marl_verl.run.run_dir import RunDir
from marl_verl.trainer.data import AdvantageMemory, Curriculum, Signal, TaskData, in_key_order
from marl_verl.trainer.metrics import play, team_metrics, validation_metrics


class Trainer:
    """Trains a team on a backend that has started; `phase` tells what the run is doing."""

    def __init__(self, config: Any, backend: Backend, phase: Phases) -> None:
        self.config, self.phase, self.team = config, phase, team_of(config)
        self.policies: Policies = backend.policies
        self.rollouts, self.store = backend.rollouts, backend.store
        self.run_dir = RunDir(Path(config.marl.run.folder))
        self.algorithm = algorithm_of(self.team)
        self.declared = self.algorithm.components(self.team.agents)
        self.records = Records(config, self.team, self.algorithm, self.run_dir)
        self.memory = AdvantageMemory(self.algorithm)
        run = marl_section(config)["run"]
        self.states = {name: module.State(run[name]) for name, module in states(run).items()}
        self.past: Any = None  # the past versions of policies with which agents act, of a distribution
        if settings := list(self.team.past.values()):
            kind = extension("policy", settings[0].kind)
            self.past = kind.Past(config, self.team, self.policies, self.run_dir.folder)
        self.reports: list[Report] = []  # of the step
        self.marl = marl = marl_of(config)
        self.filter, curriculum = marl.sampler.filters, marl.data.curriculum
        synchronous = marl.schedule.mode == "sync"
        single = (curriculum is not None or self.filter is not None) and synchronous
        self.data = TaskData(config.data, single, self.records.keeps)
        self.recording = dict(self.states)  # path in a checkpoint -> what a step's reports change
        if curriculum is not None:
            ids = [str(json.loads(task)["id"]) for task in self.data.train]
            self.data.curriculum = Curriculum(curriculum, ids, marl.run.seed)
            self.recording["curriculum"] = self.data.curriculum
        if self.past is not None:
            self.recording[self.past.folder] = self.past
        self.schedule = Synchronous(self) if synchronous else extension("schedule", marl.schedule.mode).schedule(self)
        epochs = int(config.trainer.total_epochs) * (len(self.data.train) // self.data.size)
        self.steps, self.step = min(epochs, int(config.trainer.total_training_steps)), 0
        self.tracking: Any = None

    def start(self) -> None:
        """Load the newest checkpoint of a resumed run, and act with its weights."""
        self.checkpoints = Checkpoints(
            *(self.config, self.run_dir.folder, self._parts(), self.data.loader, self.schedule, self.policies.together)
        )
        if step := self.checkpoints.load():
            self.step = self.phase.step = step
            self.run_dir.forget_after(step)
        self.policies.sync(self.schedule.versions())

    def fit(self) -> None:
        settings, self.tracking = self.config.trainer, tracking_of(self.config)
        if settings.val_before_train:
            self.tracking.log(data=self.validate(), step=self.step)
        trackers.restart(self.tracking, trackers.names_of(self.config), self.step + 1)
        while self.step < self.steps:
            self.step += 1
            self.phase.step, seconds = self.step, dict[str, float]()
            trackers.flush(self.tracking)
            with timed(seconds, "step"):
                metrics, used = self.schedule.step(seconds)
                if self.past is not None:
                    with timed(seconds, "snapshot"), self.phase("writing a snapshot"):
                        self.past.take(self.step)
                if self._due(settings.save_freq):
                    self.schedule.settle()
                    with timed(seconds, "save_checkpoint"), self.phase("writing a checkpoint"):
                        self.checkpoints.write(self.step)
                self.schedule.sync(seconds)
            if self._due(settings.test_freq):
                with timed(seconds, "testing"):
                    metrics |= self.validate()
            self._record(metrics, seconds)
            self.store.remove(used)

    def validate(self) -> dict[str, float]:
        """Run every held-out task twice: with greedy decoding, then with the sampling parameters of training."""
        self.schedule.settle()
        self.use_snapshots(self.past.newest() if self.past is not None else {})
        with self.phase("validating"):
            keep, size = int(self.config.marl.rollout.keep_episodes), self.config.data.val_batch_size
            passes = partial(play, self.data.held_out, self.sample, self.step, at_once=size)
            greedy = list(chain.from_iterable(passes(sampled=False, keep=keep)))
            sampled = list(chain.from_iterable(passes(sampled=True, keep=0)))
            if stored := [line for report in greedy + sampled for line in report.lines]:
                self.records.episodes(self.step, stored)
            self.records.check_failures(greedy + sampled)
        values = validation_metrics(greedy, sampled)
        emit("validation", step=self.step, metrics=values, tasks=len(greedy))
        self.run_dir.metrics(self.step, values)
        return values

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Report]:
        """Play tasks and wait for all. Each gets the states of earlier steps (`extensions`, group `state`)."""
        sent = {name: state.sent() for name, state in self.states.items()}
        return self.rollouts.sample([{**task, "states": sent} for task in tasks], step, validate)

    def use_snapshots(self, snapshots: Mapping[str, int]) -> None:
        """Load snapshots (policy -> step) with which past versions act."""
        if snapshots:
            with self.phase("loading snapshots"):
                self.past.use(snapshots)

    def advantages(self, table: RowTable, keep: bool = True) -> tuple[RowTable, AdvantageResult]:
        """The advantages of rows, and the rows with their credits and what the advantage remembers (if `keep`)."""
        table = self.memory.recall(self.algorithm.credited(table), keep)
        return table, self.algorithm.compute(table)

    def keep(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks. MarlError if too many failed."""
        self.reports = reports
        self.records.journals(self.step, reports)

    def signal(self, table: RowTable, result: AdvantageResult) -> Signal | None:
        """The rows to train on; None without a filter: all."""
        learning = self.marl.schedule.learning(self.policies.learning, self.step)
        return Signal.of(table, result, learning, self.filter) if self.filter else None

    def stored(self, table: RowTable, result: AdvantageResult) -> tuple[dict[str, float], Signal | None]:
        """Store how a step's advantages were computed. Returns the metrics of team and agents, and the `signal`."""
        self.records.rows(self.step, table, result)
        metrics, signal = team_metrics(table, result, self.reports, self.algorithm.metrics), self.signal(table, result)
        for part in self.recording.values():
            metrics |= part.metrics()
        return (metrics if signal is None else metrics | signal.metrics()), signal

    def _due(self, every: int) -> bool:
        return every > 0 and (self.step == self.steps or self.step % every == 0)

    def _record(self, metrics: dict[str, float], seconds: dict[str, float]) -> None:
        """Record a step's metrics, which makes its checkpoint count: a run that is killed earlier repeats the step."""
        values = {name: float(value) for name, value in metrics.items() if not name.startswith("validation/")}
        values |= {f"seconds/{name}": value for name, value in seconds.items()}
        self.run_dir.metrics(self.step, values)
        emit("step", step=self.step, steps=self.steps, metrics=values)
        plugins.load().hook.marl_step_finished(step=self.step, metrics=values)
        self.checkpoints.commit(self.step)
        if self.past is not None:
            self.past.discard()
        self.tracking.log(data=metrics | values, step=self.step)

    def _parts(self) -> dict[str, Any]:
        """Path in a checkpoint -> what is saved there."""
        parts: dict[str, Any] = {f"policies/{policy.name}": policy for policy in self.policies.trained}
        parts |= {f"critics/{name}": critic for name, critic in self.policies.critics.items()}
        if self.algorithm.advantage.remembers:
            parts["advantage"] = self.memory
        return parts | self.recording


class Synchronous:
    """The schedule `sync`: each row is used in the step that sampled it (on-policy); policies update concurrently."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.policies = trainer, trainer.policies

    def step(self, seconds: dict[str, float]) -> tuple[dict[str, float], list[str]]:
        """Run one step, and add its seconds. Returns its metrics, and the keys of the rows that are used up."""
        trainer, policies = self.trainer, self.policies
        with timed(seconds, "gen"), trainer.phase("sampling"):
            rows, table, sampled = self.sample()
        with timed(seconds, "advantage"), trainer.phase("computing advantages"):
            if (values := policies.values(rows)) is not None:
                table = replace(table, values=values)
            table, result = trainer.advantages(table)
            put_advantages(trainer.store, rows, result, policies.learning)
            metrics, signal = trainer.stored(table, result)
            learnt = (rows if signal is None else rows.part(signal.rows)).with_shared(result.shared)
            learning = trainer.marl.schedule.learning(policies.learning, trainer.step)
            learnt = learnt.part([row for row, tag in enumerate(learnt.tags) if tag["policy"] in learning])
        with timed(seconds, "update"), trainer.phase("updating"):
            values_of, used = policies.update(rows, learnt, result.target)
        return metrics | sampled | values_of, used

    def sample(self) -> tuple[Rows, RowTable, dict[str, float]]:
        """Sample the tasks of a step and, with a filter, up to `refill` times further tasks for those that teach
        nothing. Returns the rows and their table, in key order, and metrics of the filter."""
        trainer, data, reports = self.trainer, self.trainer.data, list[Report]()
        data.drawn, refills = [], 0
        missing, most = data.size, 0 if trainer.filter is None else trainer.filter.refill
        while missing:
            reports += self._play(data.draw(trainer.step, missing))
            trainer.keep(reports)
            if refills == most:
                break
            missing = max(0, min(data.size - self._useful_tasks(reports), len(data.train) - len(data.drawn)))
            refills += bool(missing)
        for part in trainer.recording.values():
            part.record(reports)
        # where servers and training share a GPU, the servers free its memory until the weights are synced
        trainer.policies.sleep()
        counts = {"filter/refill_rounds": float(refills), "filter/tasks": float(len(data.drawn))}
        return *in_key_order(reports, trainer.declared), {} if trainer.filter is None else counts

    def _play(self, tasks: Sequence[TaskRow]) -> list[Report]:
        """Sample tasks and wait. With past versions, in a round for each snapshot that tasks meet."""
        trainer, reports = self.trainer, list[Report]()
        if trainer.past is None:
            return list(trainer.sample(tasks, trainer.step))
        for snapshots, positions in trainer.past.rounds([task["uid"] for task in tasks]):
            trainer.use_snapshots(snapshots)
            reports += trainer.sample([tasks[position] for position in positions], trainer.step)
        return reports

    def _useful_tasks(self, reports: Sequence[Report]) -> int:
        """Number of tasks of the step with something to learn from; a task without rows has failed."""
        if not any(report.rows for report in reports):
            return 0
        _, table = in_key_order(reports, self.trainer.declared)
        return len(self.trainer.signal(*self.trainer.advantages(table, keep=False)).tasks)

    def sync(self, seconds: dict[str, float]) -> None:
        """Sync weights. After the checkpoint, which may need the memory that awake servers use."""
        with timed(seconds, "sync"), self.trainer.phase("syncing weights"):
            self.policies.sync(self.versions())

    def versions(self) -> dict[str, int]:
        return dict.fromkeys(self.policies.runtimes, self.trainer.step)

    def settle(self) -> None:
        """Nothing runs between two steps."""

    def state(self) -> None:
        """A checkpoint stores nothing of this schedule."""

    def restore(self, state: Any) -> None: ...
