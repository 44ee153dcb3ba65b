"""The policies of a run on Ray, on the devices of their pools: training workers, servers, weight sync between them.

Each policy has its own `RayWorkerGroup`, training workers, `LLMServerManager` and `CheckpointEngineManager` of
verl, so policies start, update and sync concurrently.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import ray
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, create_colocated_worker_cls
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager

from marl_verl.backend.learning.critic import Critic
from marl_verl.backend.learning.policy import LearningPolicy
from marl_verl.backend.learning.workers import CriticWorker, PolicyWorker
from marl_verl.backend.policies import Policies
from marl_verl.backend.protocol import Rows, RowStore, Runtime
from marl_verl.backend.verl.devices import Devices, numbered, ranks, rendezvous_ports
from marl_verl.backend.verl.rollouts import PARTITION, DirectClient
from marl_verl.config.hardware import cpu_run, first_replica_rank
from marl_verl.config.placement import pools_of, server_gpus, uses_all_cores
from marl_verl.events import awaited
from marl_verl.team import PolicyConfig, TeamConfig
from marl_verl.threads import in_thread

CRITIC = "critic"  # the role of a colocated critic in a policy's worker group


class RayPolicies(Policies):
    """`Policies` with Ray actors."""

    def __init__(self, config: DictConfig, team: TeamConfig, store: RowStore) -> None:
        devices: dict[str, Devices] = {}
        for pool in pools_of(config, team):
            # colocated policies on a CPU need no lock: there is no device memory to run out of
            devices |= dict.fromkeys(pool.policies, Devices(pool, serial=pool.shared and not cpu_run()))
        self.critic = partial(RayCritic, devices=devices)
        self.frozen = partial(FrozenRuntime, devices=devices)
        self.learner = partial(PolicyRuntime, devices=devices)
        super().__init__(config, team, store)
        self.servers = [runtime for runtime in self.runtimes.values() if isinstance(runtime, Servers)]
        # read from the files of the weights here, not in every step
        paths = {policy.name: config.policies[policy.name].actor_rollout_ref.model.path for policy in self.trained}
        self.alone = {name for name, path in paths.items() if uses_all_cores(str(path))}

    def actors(self) -> dict[str, Any]:
        """Description -> Ray actor, for every process whose death ends the run."""
        return {label: actor for runtime in self.servers for label, actor in runtime.actors().items()}


def single_server(section: DictConfig) -> str | None:
    """The name of the only server of a policy with the config `policies.NAME`; None if it has several."""
    rollout, trainer = section.actor_rollout_ref.rollout, section.trainer
    if int(trainer.nnodes) > 1 or int(trainer.n_gpus_per_node) != server_gpus(rollout):
        return None
    return f"{rollout.name}_server_{first_replica_rank(rollout.name)}_0"


class Servers(Runtime):
    """A policy with servers in this run; `config` is the resolved config, `devices` those of each policy."""

    def __init__(self, policy: PolicyConfig, config: DictConfig, devices: Mapping[str, Devices]) -> None:
        super().__init__(policy)
        self.devices, self.section = devices[self.name], config.policies[self.name]
        self.lock = self.devices.lock(self.name)
        self._arr = self.section.actor_rollout_ref

    def client(self) -> Any:
        name = single_server(self.section)
        return DirectClient(self._arr.rollout, name) if name else self.servers.get_client()

    def actors(self) -> dict[str, Any]:
        """Description -> Ray actor, for every process whose death ends the run."""
        handles = [handle for replica in self.servers.get_replicas() for handle in replica.servers]
        actors = numbered("vLLM server", f" of policy '{self.name}'", handles)
        if self.servers.global_load_balancer is not None:  # of several servers
            actors[f"load balancer of policy '{self.name}'"] = self.servers.global_load_balancer
        return actors

    def launch_servers(self, workers: Any) -> Any:
        """Start the servers' processes, on the devices of training workers or of slots. Returns the future of their
        start; on a GPU their engines wait for `start_servers`."""
        rank = first_replica_rank(self._arr.rollout.name)
        self.servers = LLMServerManager(config=self.section, worker_group=workers, start_rank=rank)
        self.servers.global_load_balancer, self.servers.rollout_replicas = None, []

        async def start() -> None:
            with awaited(f"server of {self.name}"):
                await self.servers._initialize_llm_servers()
                if single_server(self.section) is None:
                    await self.servers._init_global_load_balancer()

        starting = in_thread(f"servers-{self.name}", lambda: asyncio.run(start()))
        while not (starting.done() or self._launched()):  # they query workers, which must not be busy, for their GPUs
            time.sleep(0.02)
        return starting

    def start_servers(self, starting: Any) -> None:
        """Let the servers start their engines, and wait for what `launch_servers` returned."""
        for server in self._launched():
            server.start_engine.remote()
        starting.result()

    def _launched(self) -> list[Any]:
        """The servers; [] until all processes have been started."""
        replicas = self.servers.rollout_replicas
        launched = all(len(replica.servers) == replica.nnodes for replica in replicas)
        return [server for replica in replicas for server in replica.servers] if launched else []


class PolicyRuntime(LearningPolicy, Servers):
    """A trained policy."""

    def __init__(self, policy: PolicyConfig, config: DictConfig, *others: Any, devices: Mapping[str, Devices]) -> None:
        """`others`: store, critics and group, as of `LearningPolicy`."""
        Servers.__init__(self, policy, config, devices)
        LearningPolicy.__init__(self, policy, config, *others)
        self.lock = self.devices.lock(self.group[0].name)

    def start(self) -> None:
        """Start training workers and servers; on a GPU a pool's policies load their models one after another."""
        if not self.first:
            return
        role = "actor_rollout_ref" if self._reference and not self._lora else "actor_rollout"
        options = {"config": self._arr, "distillation_config": None, "role": role, "adapters": self.adapters()}
        classes = {role: RayClassWithInitArgs(cls=ray.remote(PolicyWorker), **options)}
        for critic in self.critics:
            classes[CRITIC] = RayClassWithInitArgs(cls=ray.remote(CriticWorker), config=critic.training()[0])
        group = RayWorkerGroup(
            resource_pool=self.devices.resources(),
            ray_cls_with_init=create_colocated_worker_cls(class_dict=classes),
            device_name=self.config.trainer.device,
            master_port_range=rendezvous_ports(),
        )
        spawned = group.spawn(prefix_set=set(classes))
        self.workers = spawned[role]
        starting = self.launch_servers(self.workers)
        # vLLM measures the device's free memory while it starts: no other process may allocate or free any meanwhile
        with self.lock:
            self._init_models(spawned)
            self.start_servers(starting)
            engine = omega_conf_to_dataclass(self._arr.rollout.checkpoint_engine)
            engine.backend = "naive"
            replicas = self.servers.get_replicas()
            self.weights = CheckpointEngineManager(config=engine, actor_wg=self.workers, replicas=replicas)
            for policy in self.group:
                policy.servers = self.servers
            self.sleep()

    def _init_models(self, spawned: Mapping[str, Any]) -> None:
        seed = self.seed

        def reseed(worker: Any) -> None:
            torch.manual_seed(seed)  # of new adapters; the generator of a worker's process starts at a random seed

        with awaited(f"training of {self.name}"):
            ray.get([worker.__ray_call__.remote(reseed) for worker in self.workers.workers])
            self.workers.init_model()
            self.set_losses()
            for critic in self.critics:
                critic.start(spawned[CRITIC])

    def actors(self) -> dict[str, Any]:
        if not self.first:
            return {}
        workers = numbered("training worker", f" of policy '{self.name}'", self.workers.workers)
        return {**workers, **super().actors()}

    @property
    def data_parallel_size(self) -> int:
        return ranks(self.workers, "actor")

    @cached_property
    def masks(self) -> bool:
        return bool(self.workers.masks()[0])

    def call(self, method: str, batch: Rows, fields: Sequence[str], **options: Any) -> Any:
        options["temperature"] = self._arr.rollout.temperature
        rows = {"partition_id": PARTITION, "keys": batch.keys, "tags": batch.tags, "fields": list(fields)}
        return getattr(self.workers, method)(KVBatchMeta(**rows, extra_info=options))

    def sleep(self) -> None:
        """Free the servers' device memory until the next weight sync; a no-op where `free_cache_engine` is off."""
        if self.first and self.sleeps:
            self.weights.sleep_replicas()

    def sync(self, version: int) -> None:
        """Send the trained weights to the servers, which wake up and clear caches of the old weights.

        Those of a shared base get all adapters at once: the schedule `sync` has one version for all policies.
        """
        if self.first:
            with self.lock:
                self.weights.update_weights(version)


class FrozenRuntime(Servers):
    """A policy that acts and never learns: servers that load the model themselves, no training worker, no optimiser.

    Or the past versions of a policy, with servers that have one snapshot at a time, of step `step`. Servers sleep
    during training only on a shared pool. Uses vLLM's `reload_weights`, which loads a model's folder in place.
    """

    step = 0  # the servers begin with the policy before training

    def start(self) -> None:
        starting = self.launch_servers(self.devices.slots())
        with self.lock:
            self.start_servers(starting)
            if self.policy.past is not None:
                asyncio.run(self._call("set_global_steps", global_steps=self.step))
            self.sleep()

    def sleep(self) -> None:
        self._call_replicas("sleep")

    def sync(self, version: int) -> None:
        self._call_replicas("wake_up")

    def load(self, step: int, model: str) -> None:
        """Load a snapshot from a folder; the servers, which must be awake and idle, report its step from now on."""

        async def load() -> None:
            await self._call("collective_rpc", method="reload_weights", kwargs={"weights_path": model})
            await self._call("clear_kv_cache")  # of the former weights
            await self._call("set_global_steps", global_steps=step)

        asyncio.run(load())
        self.step = step

    def _call_replicas(self, method: str) -> None:
        async def call() -> None:
            await asyncio.gather(*(getattr(replica, method)() for replica in self.servers.get_replicas()))

        if self.devices.pool.shared and self._arr.rollout.free_cache_engine:
            asyncio.run(call())

    async def _call(self, name: str, /, **options: Any) -> None:
        """Call the first server of each replica, which reaches the engine's processes on all nodes."""
        first = [replica.servers[0] for replica in self.servers.get_replicas()]
        await asyncio.gather(*(getattr(server, name).remote(**options) for server in first))


class RayCritic(Critic):
    """One critic; `devices` are those of each policy."""

    def __init__(self, name: str, config: DictConfig, devices: Mapping[str, Devices]) -> None:
        super().__init__(name, config)
        self.lock = devices[self.policy].lock(self.policy)

    @property
    def data_parallel_size(self) -> int:
        return ranks(self.workers, "train")

    def call(self, method: str, data: TensorDict) -> Any:
        with self.turn():
            return getattr(self.workers, method)(data).get()
