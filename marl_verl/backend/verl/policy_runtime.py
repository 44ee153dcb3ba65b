"""The runtime of a trained policy: its training workers, its inference servers, and the weight sync between them.

Each policy has its own `RayWorkerGroup`, `ActorRolloutRefWorker`, `LLMServerManager` and `CheckpointEngineManager` of
verl, so policies start, update and sync concurrently. Updates use verl's rollout correction where it is configured.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.protocol import DataProto
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import response_from_nested, response_to_nested

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.verl.arrangement import arranged
from marl_verl.backend.verl.batches import put
from marl_verl.backend.verl.critic import CRITIC, CriticRuntime
from marl_verl.backend.verl.merging import SEGMENTS, loss_of_rows, rows_of, sequences_of
from marl_verl.backend.verl.plugin_losses import register_loss
from marl_verl.backend.verl.policy_servers import Servers, TrainingWorkers
from marl_verl.backend.verl.rollout.client import PolicyServerManager
from marl_verl.backend.verl.rollout.devices import Devices, numbered, rendezvous_ports
from marl_verl.backend.verl.rollout.rows import MODEL_FIELDS, UPDATE_FIELDS
from marl_verl.config.hardware import cpu_run
from marl_verl.config.loss import unmerged_reason, updates_per_batch
from marl_verl.episode.turn import DIFFERS_AT
from marl_verl.events import awaited, timed
from marl_verl.team import PolicyConfig
from marl_verl.threads import in_thread

WEIGHTS = "rollout_is_weights"


class PolicyRuntime(TrainingWorkers, Servers):
    """A trained policy; `critics` are colocated in its training workers' processes."""

    MESH = "actor"

    def __init__(
        self, policy: PolicyConfig, config: DictConfig, devices: Devices, critics: Sequence[CriticRuntime] = ()
    ) -> None:
        super().__init__(policy, config, devices)
        self._critics = critics
        self._correction = config.algorithm.rollout_correction
        self._reference = bool(self._arr.actor.use_kl_loss)
        self._merges = unmerged_reason(self.config, self._arr.actor) is None
        self._lora = self._arr.model.get("lora_rank", 0) > 0 or self._arr.model.get("lora", {}).get("rank", 0) > 0

    def start(self) -> None:
        """Start training workers and servers; on a CPU the servers load while the workers build the model."""
        with self.lock:
            role = "actor_rollout_ref" if self._reference and not self._lora else "actor_rollout"
            classes = {role: self._worker(role)}
            for critic in self._critics:
                classes[CRITIC] = critic.worker()
            group = RayWorkerGroup(
                resource_pool=self.devices.resources(),
                ray_cls_with_init=create_colocated_worker_cls(class_dict=classes),
                device_name=self.config.trainer.device,
                master_port_range=rendezvous_ports(),
            )
            self._spawned = group.spawn(prefix_set=set(classes))
            self.workers = self._spawned[role]
            self._manage(self.workers)
            if cpu_run():
                servers = in_thread(f"servers-{self.name}", self._start_servers)
                _wait_until_launched(self.servers, servers)
                self._init_models()
                servers.result()
            else:
                # vLLM measures the device's free memory while it starts: no other process may allocate meanwhile
                self._init_models()
                self._start_servers()
            engine = omega_conf_to_dataclass(self._arr.rollout.checkpoint_engine)
            engine.backend = "naive"
            replicas = self.servers.get_replicas()
            self.sync = CheckpointEngineManager(config=engine, actor_wg=self.workers, replicas=replicas)
            self.sleep()

    @property
    def seed(self) -> int:
        """The seed of a new adapter."""
        return zlib.crc32(f"{self.config.marl.run.seed} {self.name}".encode())

    def _worker(self, role: str) -> RayClassWithInitArgs:
        """The class of the training workers."""
        return RayClassWithInitArgs(
            cls=ray.remote(ActorRolloutRefWorker), config=self._arr, distillation_config=None, role=role
        )

    def _init_models(self) -> None:
        seed = self.seed

        def reseed(worker: Any) -> None:
            torch.manual_seed(seed)  # of new adapters; the generator of a worker's process starts at a random seed

        with timed(self.seconds, "model"), awaited(f"training of {self.name}"):
            ray.get([worker.__ray_call__.remote(reseed) for worker in self.workers.workers])
            self.workers.init_model()
            self._set_losses()
            for critic in self._critics:
                critic.start(self._spawned[CRITIC])

    def _set_losses(self) -> None:
        if (mode := self._arr.actor.policy_loss.loss_mode).startswith(OWN):
            ray.get([worker.__ray_call__.remote(lambda _: register_loss(mode)) for worker in self.workers.workers])
        self.workers.set_loss_fn(self.loss())

    def loss(self) -> Any:
        """The loss function of the training workers: verl's, computed from the rows of merged sequences if they are."""
        loss = partial(ppo_loss, config=omega_conf_to_dataclass(self._arr.actor))
        return partial(loss_of_rows, loss=loss) if self._merges else loss

    def actors(self) -> dict[str, Any]:
        workers = numbered("training worker", f" of policy '{self.name}'", self.workers.workers)
        return {**workers, **super().actors()}

    def update(self, batch: KVBatchMeta, updates: int | None = None) -> tuple[KVBatchMeta, dict[str, float]]:
        """Update the policy from its rows, in key order; their advantages must be in TransferQueue.

        Args:
            updates: optimiser steps (mini-batches) per epoch; None: those of a synchronous step.

        Returns:
            The rows as they were trained, with sequences of merged rows and padding rows, and metrics: `grad_norm`,
            `pg_loss`, ..., `update_seconds`; with a rollout correction `rollout_corr/...`. `entropy` is the policy's
            before the update, in nats per token: computed without gradient, with the old log-probs.
        """
        begun, rows, actor, ranks = time.monotonic(), len(batch), self._arr.actor, self.data_parallel_size
        updates = updates_per_batch(self.config, actor) if updates is None else updates
        updates = min(updates, max(1, rows // ranks))  # no update has only padding rows
        metrics = {"merge/rows_before": rows, "tokens/sampled": sum(tag["response_len"] for tag in batch.tags)}
        metrics |= _mismatches(batch.tags)
        with self.turn():
            batch = arranged(batch, updates, ranks, self._merges)
            real = [tag for tag in batch.tags if not tag.get("is_padding")]
            metrics |= {"merge/rows_after": len(real), "tokens/trained": sum(tag["seq_len"] for tag in real)}
            merged, fields = len(real) < rows, [*UPDATE_FIELDS]
            if not self._correction.bypass_mode:
                metrics |= self._log_probs(batch, "old_log_probs", self.workers.compute_log_prob, entropy=True)
            added, corrected = _correct(batch, self._correction, merged)
            fields += [*added, *[SEGMENTS] * merged]
            if self._reference:
                fields.append("ref_log_prob")
                call = self.workers.compute_log_prob if self._lora else self.workers.compute_ref_log_prob
                self._log_probs(batch, "ref_log_prob", call, no_lora_adapter=self._lora)
            output = self._call(
                self.workers.update_actor,
                batch,
                fields,
                calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
                distillation_use_topk=False,
                distillation_only=False,
                # the mean over rows counts real rows only: padding rows have no response tokens
                global_batch_size=rows / updates,
                mini_batch_size=len(batch) // updates,
                epochs=actor.ppo_epochs,
                seed=actor.data_loader_seed,
                dataloader_kwargs={"shuffle": actor.shuffle},
            )
        reduced = reduce_metrics(dict(output["metrics"]))
        metrics = {name.removeprefix("actor/"): value for name, value in reduced.items()} | metrics | corrected
        metrics["update_seconds"] = time.monotonic() - begun
        return batch, {name: float(value) for name, value in metrics.items()}

    def _log_probs(
        self, batch: KVBatchMeta, field: str, call: Any, no_lora_adapter: bool = False, entropy: bool = False
    ) -> dict[str, float]:
        """Put a model's log-probs into the rows. Returns the mean entropy of the response tokens where wanted."""
        reference = {"no_lora_adapter": True} if no_lora_adapter else {}
        self._call(call, batch, MODEL_FIELDS, calculate_entropy=entropy, compute_loss=False, **reference)
        results = ["log_probs", "response_mask", *(["entropy"] if entropy else [])]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=results)
        mask = data["response_mask"]
        # as the rows have them: TransferQueue has one type per field, and a model may compute in bfloat16
        put(batch, batch.keys, **{field: response_from_nested(data["log_probs"].float(), mask)})
        if not entropy:
            return {}
        chosen = mask.values().bool()  # padding rows have no response token
        return {"entropy": float(response_from_nested(data["entropy"], mask).values()[chosen].mean())}

    def _call(self, call: Any, batch: KVBatchMeta, fields: Sequence[str], **options: Any) -> Any:
        """Call a method of the training workers with fields of a batch's rows."""
        batch.extra_info.update(options, temperature=self._arr.rollout.temperature)
        batch.fields = list(fields)
        output = call(batch)
        batch.fields = None
        return output

    def sleep(self) -> None:
        """Free the servers' device memory until the next weight sync; a no-op where `free_cache_engine` is off."""
        if self._arr.rollout.free_cache_engine:
            self.sync.sleep_replicas()

    def sync_weights(self, version: int) -> None:
        """Send the trained weights to the servers, which wake up and clear caches of the old weights."""
        with self.lock:
            self.sync.update_weights(version)


def _mismatches(tags: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`merge/mismatches`: of the rows that continue a conversation, the share whose prompt has other tokens."""
    places = [tag[DIFFERS_AT] for tag in tags if tag.get(DIFFERS_AT) is not None]
    return {"merge/mismatches": sum(place >= 0 for place in places) / len(places)} if places else {}


def _wait_until_launched(manager: PolicyServerManager, servers: Any) -> None:
    """Wait until the server actors exist: they query the training workers' nodes and GPUs before `init_model`."""
    while not servers.done():
        replicas = getattr(manager, "rollout_replicas", [])
        if replicas and all(replica.servers for replica in replicas):
            return
        time.sleep(0.02)
    servers.result()


def _correct(batch: KVBatchMeta, settings: DictConfig, merged: bool = False) -> tuple[list[str], dict[str, float]]:
    """Apply verl's rollout correction (weights and rejections) to all rows of an update that have `old_log_probs`.

    The servers' numerics, and sometimes their weights, differ from the trainer's. The loss of each token is multiplied
    by a truncated importance weight

        w = min(pi_old / pi_rollout, rollout_is_threshold)    rollout_is=token; the product over a row for "sequence"

    and `rollout_rs` rejects tokens or rows whose ratio is too far from 1. As in verl's V1 trainer, rejected tokens are
    removed from `response_mask` but not from `loss_mask`: they add 0 to a sum and still count in a mean's denominator.
    Padding rows have weight 0 and enter no statistic. Returns the additional fields that the update has to read, and
    verl's metrics (`rollout_corr/...`); both are empty where `algorithm.rollout_correction` is off, as it is with
    `bypass_mode` (`config/loss.py`).
    """
    if not (settings.rollout_is or settings.rollout_rs):
        return [], {}
    real = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding")]
    keys, needed = [batch.keys[row] for row in real], ["old_log_probs", "rollout_log_probs", "response_mask"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*needed, *[SEGMENTS] * merged])
    segments = data[SEGMENTS] if merged else None
    columns = {name: data[name] if segments is None else rows_of(data[name], segments) for name in needed}
    mask = columns["response_mask"]
    rows = TensorDict(columns, batch_size=len(mask.offsets()) - 1)
    # [rows, longest response], right-padded with zeros
    corrected, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=rows.to_padded_tensor()), settings)

    def as_read(values: torch.Tensor) -> torch.Tensor:
        """Padded values of rows as those of the batch's rows, which may be merged."""
        nested = response_to_nested(values, mask)
        return nested if segments is None else sequences_of(nested, segments)

    if settings.rollout_rs:
        put(batch, keys, response_mask=as_read(corrected.batch["response_mask"]))
    if WEIGHTS not in corrected.batch:
        return [], metrics
    weights = dict(zip(real, as_read(corrected.batch[WEIGHTS]).unbind(), strict=True))
    padded = [weights.get(row, torch.zeros(1)) for row in range(len(batch))]
    put(batch, batch.keys, **{WEIGHTS: torch.nested.as_nested_tensor(padded, layout=torch.jagged)})
    return [WEIGHTS], metrics
