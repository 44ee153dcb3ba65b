"""The team's training loop: verl's `PPOTrainer`, with a runtime for each policy and one advantage over the whole team.

Touches verl: the methods of `PPOTrainer` overridden below, and its `fit`, which calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils import tensordict_utils as tu

from marl_verl import plugins
from marl_verl.advantage import Advantages, RowTable
from marl_verl.advantage.rows import FloatArray
from marl_verl.errors import MarlError
from marl_verl.explain import step_document
from marl_verl.journals.write import as_line, header
from marl_verl.parts import algorithm_of
from marl_verl.platforms.active import cpu_run
from marl_verl.rollout.rows import identity
from marl_verl.rollout.worker import Report
from marl_verl.tasks.base import Split
from marl_verl.team import Named, read_team
from marl_verl.trainer import checkpoint
from marl_verl.trainer.asynchronous import Asynchronous
from marl_verl.trainer.critic import Critics
from marl_verl.trainer.placement import pools_of
from marl_verl.trainer.policy_runtime import PolicyRuntime
from marl_verl.trainer.policy_servers import EndpointRuntime, FrozenRuntime, Runtime
from marl_verl.trainer.pools import Place
from marl_verl.trainer.replay_buffer import TeamReplayBuffer
from marl_verl.trainer.run_dir import RunDir, emit
from marl_verl.trainer.synchronous import Schedule, Synchronous
from marl_verl.trainer.validation import validate
from marl_verl.trainer.watch import Phases

R = TypeVar("R", bound=Runtime)
T = TypeVar("T")


@register_trainer("team")
class TeamTrainer(PPOTrainer):
    """What a run does: sample with all policies, an advantage over the rows of all, update each policy from its own.

    In which order, and what waits for what, is the schedule's. Policies start, update and sync at the same time, those
    on a shared pool one after the other.
    """

    def __init__(self, config: Any) -> None:
        marl: Any = OmegaConf.to_container(config.marl, resolve=True)
        self.team = read_team(marl, allow_frozen=True)
        self.run_dir = RunDir(Path(marl["run"]["folder"]))
        self.known = plugins.load()
        self.algorithm = algorithm_of(self.team)
        self.reports: list[Report] = []
        super().__init__(config)
        # verl takes any other name than "sync" for an asynchronous mode
        self.trainer_mode = "sync"
        self.phase = Phases(lambda: getattr(self, "global_steps", 0))
        places: dict[str, Place] = {}
        for pool in pools_of(self.config, self.team):
            # on a CPU colocated policies share nothing that could run out
            places |= dict.fromkeys(pool.policies, Place(pool, serial=pool.shared and not cpu_run()))
        self.critics = Critics(self.config, self.team, places)
        self.policies = self._runtimes(places)
        mode = self.config.marl.schedule.mode
        self.schedule: Schedule = Synchronous(self) if mode == "sync" else Asynchronous(self)

    def _runtimes(self, places: dict[str, Place]) -> dict[str, Runtime]:
        found: dict[str, Runtime] = {}
        for name, policy in self.team.policies.items():
            if policy.endpoint is not None:
                found[name] = EndpointRuntime(policy)
            elif policy.frozen:
                found[name] = FrozenRuntime(policy, self._config_of(name), places[name])
            else:
                found[name] = PolicyRuntime(policy, self._config_of(name), places[name], self.critics.guests(name))
        return found

    def _build_replay_buffer(self) -> TeamReplayBuffer:
        sampler = self.config.trainer.v1.sampler
        return TeamReplayBuffer(
            wait=self._wait_for_tasks,
            trainer_mode="sync",
            trainer_config=self.config.trainer.v1.sync,
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
        )

    # -- start ---------------------------------------------------------------------------------------------------

    @property
    def early_clients(self) -> bool:
        """Whether rollout workers can be given their clients before the servers are up."""
        return all(runtime.early for runtime in self.policies.values())

    def start_policies(self) -> None:
        """Bring up every policy's workers and servers, all at the same time."""
        self.at_once(self.policies.values(), lambda runtime: runtime.start())

    def _setup(self) -> None:
        """verl's, without the workers that `start_policies` has brought up."""
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.reward_loop_manager = None
        self.teacher_model_manager = None
        self._load_checkpoint()

    def _config_of(self, policy: str) -> Any:
        config: Any = OmegaConf.create(OmegaConf.to_container(self.config))
        with open_dict(config):
            own = config.policies[policy]
            config.actor_rollout_ref = own.actor_rollout_ref
            config.algorithm.rollout_correction = own.algorithm.rollout_correction
            config.trainer.n_gpus_per_node, config.trainer.nnodes = own.trainer.n_gpus_per_node, own.trainer.nnodes
            del config["policies"]
        return config

    def trained(self) -> list[PolicyRuntime]:
        """The policies that learn."""
        return [runtime for runtime in self.policies.values() if isinstance(runtime, PolicyRuntime)]

    @staticmethod
    def at_once(runtimes: Collection[R], call: Callable[[R], T]) -> dict[str, T]:
        """Call something on several policies at the same time, and wait for all; the first error is raised."""
        with ThreadPoolExecutor(max_workers=max(1, len(runtimes))) as threads:
            futures = {runtime.name: threads.submit(call, runtime) for runtime in runtimes}
            return {name: future.result() for name, future in futures.items()}

    def on_init_end(self) -> None:
        """Give the servers of policies that learn their weights: verl may start them without any."""
        self.at_once(self.policies.values(), lambda runtime: runtime.ready(self.schedule.version(runtime.name)))

    def get_llm_client(self) -> Any:
        """verl's client for the servers of each policy, by name."""
        return {name: runtime.client() for name, runtime in self.policies.items()}

    def get_teacher_client(self) -> None:
        return None

    def get_reward_handles(self) -> None:
        """None: tasks and role rewards score episodes where they are sampled, there is no reward loop."""
        return None

    # -- a step --------------------------------------------------------------------------------------------------

    def _fetch_one_gen_batch(self) -> TensorDict:
        """verl's, with uids that are the same in every run of the same config."""
        batch = super()._fetch_one_gen_batch()
        positions = range(len(batch))
        tu.assign_non_tensor_stack(batch, "uid", [f"s{self.global_steps}t{position:05d}" for position in positions])
        tu.assign_non_tensor_stack(batch, "keep", [self._keeps(position) for position in positions])
        return batch

    def _wait_for_tasks(self) -> None:
        self.take_reports(self.agent_loop_manager.collect())

    def take_reports(self, reports: list[Report]) -> None:
        """Store the episodes of a step's tasks; the run stops if too many failed."""
        self.reports = reports
        lines = [line for report in reports for line in report.lines]
        if lines:  # before a run stops for its failures: they are among them
            self.run_dir.journals(self.global_steps, [self.journal_header("train"), *lines])
        self.check_failures(reports)

    def _keeps(self, position: int) -> bool:
        """Whether a task's episodes are stored in journals/."""
        run = self.config.marl.run
        every, tasks = int(run.keep_journals), run.journal_tasks
        return every > 0 and self.global_steps % every == 0 and (tasks is None or position < int(tasks))

    def journal_header(self, split: Split) -> str:
        """The first line of a file of episodes: of a training step, or of a validation's greedy pass."""
        marl: Any = OmegaConf.to_container(self.config.marl, resolve=True)
        sampler, sessions = Named("independent"), 1
        if split == "train":
            sampler = Named(self.algorithm.sampler, marl["sampler"]["options"])
            sessions = int(marl["sampler"]["sessions"])
        seed = int(marl["run"]["seed"])
        return as_line(header(self.team, self.algorithm, self.global_steps, split, seed, sampler, sessions))

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        """What the schedule says a step is."""
        return self.schedule.step(metrics, timing_raw)

    def sample(self) -> KVBatchMeta:
        """Rows of one batch of tasks, in key order; the run stops if too many episodes failed."""
        self._add_batch_to_generate()
        batch, _ = self.replay_buffer.sample(
            global_steps=self.global_steps, partition_id="train", batch_size=self.config.data.train_batch_size
        )
        # where servers and training share a GPU, the servers make room until the weights are synced
        self.at_once(self.policies.values(), lambda runtime: runtime.rest())
        batch.reorder(sorted(range(len(batch)), key=lambda row: _row_order(batch.keys[row])))
        return batch

    def put_advantages(self, batch: KVBatchMeta) -> tuple[RowTable, Advantages]:
        """Compute the advantage of every row over the whole team, write it to TransferQueue, and store how it came."""
        rows = [identity(tag) for tag in batch.tags]
        for row, value in zip(rows, self.critics.values(batch) or [], strict=False):
            row["value"] = value
        table = RowTable.from_rows(rows)
        result = self.algorithm.compute(table)
        self.write_advantages(batch, result.advantage)
        self.store_rows(table, result)
        return table, result

    def write_advantages(self, batch: KVBatchMeta, advantage: FloatArray) -> None:
        """Put the advantage of every row, [rows of the batch], where its policy's update finds it."""
        _put_advantages(batch, advantage, {runtime.name for runtime in self.trained()})

    def store_rows(self, table: RowTable, result: Advantages) -> None:
        """Store how a step's advantages came about, for `marl-verl explain`."""
        every = int(self.config.marl.run.keep_rows)
        if every and self.global_steps % every == 0:
            document = step_document(self.team.algorithm.name, self.algorithm, table, result, self.global_steps)
            self.run_dir.rows(self.global_steps, document)

    def update(self, batch: KVBatchMeta) -> dict[str, tuple[KVBatchMeta, dict[str, float]]]:
        """Each trained policy learns from its own rows, all at the same time."""
        parts = _by_policy(batch)
        chosen = [runtime for runtime in self.trained() if runtime.name in parts]
        return self.at_once(chosen, lambda runtime: self._update_policy(runtime, parts[runtime.name]))

    def update_critics(self, batch: KVBatchMeta, result: Advantages) -> dict[str, float]:
        """Each critic learns what it should have expected of its rows, all at the same time; their metrics."""
        return {} if result.target is None else self.critics.update(batch, result.target)

    def _update_policy(self, runtime: PolicyRuntime, part: KVBatchMeta) -> tuple[KVBatchMeta, dict[str, float]]:
        begun = time.monotonic()
        mini_batch = runtime.config.actor_rollout_ref.actor.ppo_mini_batch_size
        part, values = runtime.update(part, updates=max(1, self.config.data.train_batch_size // mini_batch))
        values["update_seconds"] = time.monotonic() - begun
        return part, values

    def check_failures(self, reports: list[Report]) -> None:
        """Stop when too many episodes failed, or the sampler itself did."""
        for report in reports:
            if report.error:
                raise MarlError(f"sampling task '{report.task}' failed: {report.error}")
        failures = [failure for report in reports for failure in report.failures]
        total = sum(report.attempts for report in reports)
        share = float(self.config.marl.rollout.max_failed_share)
        if failures and len(failures) > share * total:
            first = failures[0]
            raise MarlError(
                f"{len(failures)} of {total} attempts failed, marl.rollout.max_failed_share={share:g} allows fewer; "
                f"the first: {first.reason}: {first.detail}"
            )

    def on_sample_end(self) -> None:
        return None

    def on_step_end(self) -> None:
        """Sync, where the schedule does it here."""
        self.schedule.on_step_end()

    # -- validation, metrics, checkpoints ------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        self.schedule.settle()
        with self.phase("validating"):
            result = validate(self)
        values = result.metrics()
        emit("validation", step=self.global_steps, metrics=values, tasks=result.tasks)
        self.run_dir.metrics(self.global_steps, values)
        return values

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict, timing_raw: dict, global_steps: int, epoch: int
    ) -> None:
        values = {name: float(value) for name, value in metrics.items() if not name.startswith("validation/")}
        values.update({f"seconds/{name}": float(value) for name, value in timing_raw.items()})
        self.run_dir.metrics(global_steps, values)
        emit("step", step=global_steps, steps=self.total_training_steps, metrics=values)
        self.known.hook.marl_step_finished(step=global_steps, metrics=values)
        checkpoint.commit(self)

    def _save_checkpoint(self) -> None:
        self.schedule.settle()
        with self.phase("writing a checkpoint"):
            checkpoint.write(self)

    def _load_checkpoint(self) -> None:
        self.global_steps = checkpoint.load(self)
        if self.global_steps:
            self.run_dir.forget_after(self.global_steps)


def _row_order(key: str) -> tuple[str, int, int]:
    uid, session, index = key.split("_")
    return uid, int(session), int(index)


def _by_policy(batch: KVBatchMeta) -> dict[str, KVBatchMeta]:
    """The rows of each policy, in the order of the batch."""
    rows: dict[str, list[int]] = {}
    for row, tag in enumerate(batch.tags):
        rows.setdefault(tag["policy"], []).append(row)
    return {
        name: KVBatchMeta(
            partition_id=batch.partition_id, keys=[batch.keys[i] for i in chosen], tags=[batch.tags[i] for i in chosen]
        )
        for name, chosen in rows.items()
    }


def _put_advantages(batch: KVBatchMeta, advantage: FloatArray, learning: Collection[str]) -> None:
    """Write each row's advantage on all of its response tokens (all of them were sampled).

    Rows of policies that do not learn have no tokens in TransferQueue.
    """
    rows = [row for row, tag in enumerate(batch.tags) if tag["policy"] in learning]
    if not rows:
        return
    lengths = [batch.tags[row]["response_len"] for row in rows]
    values = torch.tensor(advantage, dtype=torch.float32)[rows]
    nested = torch.nested.as_nested_tensor(
        [value.expand(length).clone() for value, length in zip(values, lengths, strict=True)], layout=torch.jagged
    )
    fields = TensorDict({"advantages": nested}, batch_size=len(rows))
    tq.kv_batch_put(keys=[batch.keys[row] for row in rows], partition_id=batch.partition_id, fields=fields)
