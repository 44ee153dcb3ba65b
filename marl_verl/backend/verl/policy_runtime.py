"""The runtime of a trained policy on Ray: its training workers, its servers, and the weight sync between them.

Each policy has its own `RayWorkerGroup`, training workers, `LLMServerManager` and `CheckpointEngineManager` of
verl, so policies start, update and sync concurrently.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls
from verl.utils.config import omega_conf_to_dataclass

from marl_verl.algo.algorithms.losses import OWN
from marl_verl.backend.learning.adapters import SharedBaseWorker
from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.critic_worker import CriticWorker
from marl_verl.backend.learning.policy import LearningPolicy, register_loss
from marl_verl.backend.learning.policy_worker import PolicyWorker
from marl_verl.backend.protocol import Rows, RowStore
from marl_verl.backend.verl.devices import Devices, numbered, ranks, rendezvous_ports
from marl_verl.backend.verl.policy_servers import PolicyServerManager, Servers
from marl_verl.backend.verl.rollouts import meta
from marl_verl.config.hardware import cpu_run
from marl_verl.events import awaited, timed
from marl_verl.team import PolicyConfig
from marl_verl.threads import in_thread


class PolicyRuntime(LearningPolicy, Servers):
    """A trained policy; `critics` are colocated in its training workers' processes."""

    def __init__(
        self,
        policy: PolicyConfig,
        config: DictConfig,
        devices: Devices,
        store: RowStore,
        critics: Sequence[RayCritic] = (),
    ) -> None:
        LearningPolicy.__init__(self, policy, config, config, store)
        self._place(config, devices)
        self._critics = critics

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
            self.weights = CheckpointEngineManager(config=engine, actor_wg=self.workers, replicas=replicas)
            self.sleep()

    def _worker(self, role: str) -> RayClassWithInitArgs:
        """The class of the training workers."""
        return RayClassWithInitArgs(cls=ray.remote(PolicyWorker), config=self._arr, distillation_config=None, role=role)

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

    def actors(self) -> dict[str, Any]:
        workers = numbered("training worker", f" of policy '{self.name}'", self.workers.workers)
        return {**workers, **super().actors()}

    @property
    def data_parallel_size(self) -> int:
        return ranks(self.workers, "actor")

    @cached_property
    def masks(self) -> bool:
        return bool(self.workers.masks()[0])

    def call(self, method: str, batch: Rows, fields: Sequence[str], **options: Any) -> Any:
        """See `LearningPolicy`: workers read the fields from TransferQueue and write their columns to it."""
        options["temperature"] = self._arr.rollout.temperature
        return getattr(self.workers, method)(meta(batch, fields, options))

    def sleep(self) -> None:
        """Free the servers' device memory until the next weight sync; a no-op where `free_cache_engine` is off."""
        if self._arr.rollout.free_cache_engine:
            self.weights.sleep_replicas()

    def sync(self, version: int) -> None:
        """Send the trained weights to the servers, which wake up and clear caches of the old weights."""
        with self.lock:
            self.weights.update_weights(version)


def _wait_until_launched(manager: PolicyServerManager, servers: Any) -> None:
    """Wait until the server actors exist: they query the training workers' nodes and GPUs before `init_model`."""
    while not servers.done():
        replicas = getattr(manager, "rollout_replicas", [])
        if replicas and all(replica.servers for replica in replicas):
            return
        time.sleep(0.02)
    servers.result()


CRITIC = "critic"
"""The role of a colocated critic in a policy's worker group."""


class RayCritic(Critic):
    """One critic; `devices` are those of its policy."""

    def __init__(self, name: str, settings: DictConfig, devices: Devices, updates: int) -> None:
        super().__init__(name, settings, updates)
        self.lock = devices.lock(self.policy)

    def worker(self) -> RayClassWithInitArgs:
        """The worker class that the policy's worker group starts next to the policy's."""
        config, self._loss = self.training()
        return RayClassWithInitArgs(cls=ray.remote(CriticWorker), config=config)

    def start(self, workers: Any) -> None:
        """Build model and optimiser in the worker group that was made from `worker`."""
        self.workers = workers
        self.workers.reset()
        self.workers.set_loss_fn(self._loss)

    @property
    def data_parallel_size(self) -> int:
        return ranks(self.workers, "train")

    def call(self, method: str, data: TensorDict) -> TensorDict:
        with self.turn():
            output: TensorDict = getattr(self.workers, method)(data).get()
            return output


class SharedRuntime(PolicyRuntime):
    """A trained policy with an adapter on a base model that it shares with the others of `group`, in their order."""

    def __init__(
        self,
        policy: PolicyConfig,
        config: DictConfig,
        devices: Devices,
        store: RowStore,
        critics: Sequence[RayCritic],
        group: list[SharedRuntime],
    ) -> None:
        super().__init__(policy, config, devices, store, critics)
        group.append(self)
        self.group, self.lock = group, group[0].lock

    @property
    def first(self) -> bool:
        return self.group[0] is self

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self.lock:
            self.workers.use(self.name)
            yield

    def start(self) -> None:
        if self.first:
            super().start()
            for other in self.group[1:]:
                other.workers, other.servers = self.workers, self.servers

    def _worker(self, role: str) -> RayClassWithInitArgs:
        policies = {other.name: other.adapter_settings() for other in self.group}
        options = {"config": self._arr, "distillation_config": None, "role": role, "policies": policies}
        return RayClassWithInitArgs(cls=ray.remote(SharedBaseWorker), **options)

    def _set_losses(self) -> None:
        for other in self.group:
            other.workers = self.workers
            with other.turn():
                super(SharedRuntime, other)._set_losses()

    def actors(self) -> dict[str, Any]:
        return super().actors() if self.first else {}

    def sleep(self) -> None:
        if self.first:
            super().sleep()

    def sync(self, version: int) -> None:
        """Send all adapters at once: the schedule `sync` has one version for all policies."""
        if self.first:
            super().sync(version)
