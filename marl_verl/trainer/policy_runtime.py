"""The runtime of a trained policy: its training workers, its inference servers, and the weight sync between them.

Each policy has its own `RayWorkerGroup`, `ActorRolloutRefWorker`, `LLMServerManager` and `CheckpointEngineManager` of
verl, so policies start, update and sync concurrently. Updates use verl's rollout correction where it is configured.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence
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
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.metric import reduce_metrics
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.utils.padding import response_from_nested, response_to_nested

from marl_verl.algorithms.losses import OWN
from marl_verl.platforms.active import cpu_run
from marl_verl.rollout.client import PolicyServerManager
from marl_verl.rollout.devices import Devices, numbered, rendezvous_ports
from marl_verl.rollout.rows import MODEL_FIELDS, UPDATE_FIELDS
from marl_verl.team import PolicyConfig
from marl_verl.threads import in_thread
from marl_verl.trainer.critic import CRITIC, CriticRuntime
from marl_verl.trainer.metrics import timed
from marl_verl.trainer.plugin_losses import register_loss
from marl_verl.trainer.policy_servers import Servers, TrainingWorkers

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
        self._lora = self._arr.model.get("lora_rank", 0) > 0 or self._arr.model.get("lora", {}).get("rank", 0) > 0

    def start(self) -> None:
        """Start training workers and servers; on a CPU the servers load while the workers build the model."""
        with self.lock:
            role = "actor_rollout_ref" if self._reference and not self._lora else "actor_rollout"
            worker = RayClassWithInitArgs(
                cls=ray.remote(ActorRolloutRefWorker), config=self._arr, distillation_config=None, role=role
            )
            classes = {role: worker}
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

    def _init_models(self) -> None:
        seed = zlib.crc32(f"{self.config.marl.run.seed} {self.name}".encode())

        def reseed(worker: Any) -> None:
            torch.manual_seed(seed)  # of new adapters; the generator of a worker's process starts at a random seed

        with timed(self.seconds, "model"):
            ray.get([worker.__ray_call__.remote(reseed) for worker in self.workers.workers])
            if (mode := self._arr.actor.policy_loss.loss_mode).startswith(OWN):
                ray.get([worker.__ray_call__.remote(lambda _: register_loss(mode)) for worker in self.workers.workers])
            self.workers.init_model()
            for critic in self._critics:
                critic.start(self._spawned[CRITIC])

    def actors(self) -> dict[str, Any]:
        workers = numbered("training worker", f" of policy '{self.name}'", self.workers.workers)
        return {**workers, **super().actors()}

    def update(self, batch: KVBatchMeta, updates: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Update the policy from its rows, in key order; their advantages must be in TransferQueue.

        `updates` is the number of optimiser steps (mini-batches) per epoch. Returns the batch with its padding rows,
        and metrics (`grad_norm`, `pg_loss`, ...; with a rollout correction `rollout_corr/...`). Metric `entropy` is the
        policy's before the update, in nats per token: computed without gradient, with the old log-probs.
        """
        with self.lock:
            rows = len(batch)
            updates = min(updates, max(1, rows // self.data_parallel_size))  # no update has only padding rows
            batch = self._padded(batch, updates)
            self._balance(batch, updates)
            fields, before = list(UPDATE_FIELDS), {}
            if not self._correction.bypass_mode:
                before = self._log_probs(batch, "old_log_probs", self.workers.compute_log_prob, entropy=True)
            more, corrected = _correct(batch, self._correction)
            fields += more
            if self._reference:
                fields.append("ref_log_prob")
                call = self.workers.compute_log_prob if self._lora else self.workers.compute_ref_log_prob
                self._log_probs(batch, "ref_log_prob", call, no_lora_adapter=self._lora)
            actor = self._arr.actor
            batch.extra_info.update(
                calculate_entropy=bool(actor.calculate_entropy or actor.entropy_coeff),
                distillation_use_topk=False,
                distillation_only=False,
                # the mean over rows counts real rows only: padding rows have no response tokens
                global_batch_size=rows / updates,
                mini_batch_size=len(batch) // updates,
                epochs=actor.ppo_epochs,
                seed=actor.data_loader_seed,
                dataloader_kwargs={"shuffle": actor.shuffle},
                temperature=self._arr.rollout.temperature,
            )
            batch.fields = fields
            output = self.workers.update_actor(batch)
            batch.fields = None
            reduced = reduce_metrics(dict(output["metrics"]))
            metrics = {name.removeprefix("actor/"): value for name, value in reduced.items()}
            return batch, {name: float(value) for name, value in {**metrics, **before, **corrected}.items()}

    def _padded(self, batch: KVBatchMeta, updates: int) -> KVBatchMeta:
        """Add rows without a response token until every rank has the same number of rows in every update.

        verl copies unknown fields from the first row, at that row's length, so marl-verl's fields are set here.
        """
        multiple = updates * self.data_parallel_size
        padded = upsample_batch_to_divisible_size(batch, multiple, eos_token_id=0)
        new = padded.keys[len(batch) :]
        if new:
            zeros = torch.nested.as_nested_tensor([torch.zeros(1) for _ in new], layout=torch.jagged)
            _put(batch, new, advantages=zeros, old_log_probs=zeros.clone())
        return padded

    def _balance(self, batch: KVBatchMeta, updates: int) -> None:
        """Balance tokens over ranks, and spread the padding rows, which are last, over the updates."""
        parts = [list(range(len(batch)))]
        if (count := self.data_parallel_size) > 1:
            lengths = torch.tensor([tag["seq_len"] for tag in batch.tags], dtype=torch.int64)
            parts = get_seqlen_balanced_partitions(calculate_workload(lengths), k_partitions=count, equal_size=True)
        if any(tag.get("is_padding") for tag in batch.tags):
            parts = [[row for first in range(updates) for row in sorted(part)[first::updates]] for part in parts]
        order = [row for part in parts for row in part]
        if order != list(range(len(batch))):  # one rank without padding: keep the key order
            batch.reorder(order)

    def _log_probs(
        self, batch: KVBatchMeta, field: str, call: Any, no_lora_adapter: bool = False, entropy: bool = False
    ) -> dict[str, float]:
        """Put a model's log-probs into the rows. Returns the mean entropy of the response tokens where wanted."""
        temperature = self._arr.rollout.temperature
        batch.extra_info.update(calculate_entropy=entropy, compute_loss=False, temperature=temperature)
        if no_lora_adapter:
            batch.extra_info["no_lora_adapter"] = True
        batch.fields = list(MODEL_FIELDS)
        call(batch)
        batch.fields = None
        wanted = ["log_probs", "response_mask", *(["entropy"] if entropy else [])]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=wanted)
        # as the rows have them: TransferQueue has one type per field, and a model may compute in bfloat16
        data["log_probs"] = data["log_probs"].float()
        mask = data["response_mask"]
        _put(batch, batch.keys, **{field: response_from_nested(data["log_probs"], mask)})
        if not entropy:
            return {}
        chosen = mask.values().bool()  # padding rows have no response token
        return {"entropy": float(response_from_nested(data["entropy"], mask).values()[chosen].mean())}

    def sleep(self) -> None:
        """Free the servers' device memory until the next weight sync; a no-op where `free_cache_engine` is off."""
        if self._arr.rollout.free_cache_engine:
            self.sync.sleep_replicas()

    def sync_weights(self, version: int) -> None:
        """Send the trained weights to the servers, which wake up and clear caches of the old weights."""
        with self.lock:
            self.sync.update_weights(version)


def _wait_until_launched(manager: PolicyServerManager, servers: Any) -> None:
    """Wait until the server actors exist: they query the training workers' nodes and GPUs before `init_model`."""
    while not servers.done():
        replicas = getattr(manager, "rollout_replicas", [])
        if replicas and all(replica.servers for replica in replicas):
            return
        time.sleep(0.02)
    servers.result()


def _correct(batch: KVBatchMeta, settings: DictConfig) -> tuple[list[str], dict[str, float]]:
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
    rows = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=needed)
    # [rows, longest response], right-padded with zeros
    data, metrics = compute_rollout_correction_and_add_to_batch(DataProto(batch=rows.to_padded_tensor()), settings)
    if settings.rollout_rs:
        _put(batch, keys, response_mask=response_to_nested(data.batch["response_mask"], rows["response_mask"]))
    if WEIGHTS not in data.batch:
        return [], metrics
    weights = dict(zip(real, response_to_nested(data.batch[WEIGHTS], rows["response_mask"]).unbind(), strict=True))
    padded = [weights.get(row, torch.zeros(tag["response_len"])) for row, tag in enumerate(batch.tags)]
    _put(batch, batch.keys, **{WEIGHTS: torch.nested.as_nested_tensor(padded, layout=torch.jagged)})
    return [WEIGHTS], metrics


def _put(batch: KVBatchMeta, keys: list[str], **fields: torch.Tensor) -> None:
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=TensorDict(fields, batch_size=len(keys)))
