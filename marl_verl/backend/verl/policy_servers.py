"""The servers of a policy on Ray, and the runtimes of policies that only act: frozen ones, past versions."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import ray
from omegaconf import DictConfig
from verl.workers.rollout.llm_server import LLMServerClient, LLMServerManager

from marl_verl.backend.runtime import Runtime
from marl_verl.backend.verl.devices import Devices, numbered
from marl_verl.config.hardware import first_replica_rank
from marl_verl.config.placement import server_gpus
from marl_verl.events import awaited, timed
from marl_verl.team import PolicyConfig


class DirectClient(LLMServerClient):
    """verl's client for a policy with one server, called by actor name, without a load balancer process.

    The server need not exist yet: a rollout worker can initialise while the servers start.
    """

    def __init__(self, rollout: DictConfig, server_name: str) -> None:
        # verl's client reads these two at every request; reading them from a DictConfig is slower than the request
        light = SimpleNamespace(name=rollout.name, full_determinism=rollout.full_determinism)
        super().__init__(config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=light)))
        self._name, self._server = server_name, None

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if self._server is None:
            self._server = ray.get_actor(self._name)
        return self._name, self._server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        return None


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

    def start_servers(self, workers: Any) -> None:
        """Start the servers on the devices of training workers, or of slots."""
        rank = first_replica_rank(self._arr.rollout.name)
        self.servers = LLMServerManager(config=self.section, worker_group=workers, start_rank=rank)
        self.servers.global_load_balancer = None

        async def start() -> None:
            await self.servers._initialize_llm_servers()
            if single_server(self.section) is None:
                await self.servers._init_global_load_balancer()

        with timed(self.seconds, "server"), awaited(f"server of {self.name}"):
            asyncio.run(start())


class FrozenRuntime(Servers):
    """A policy that acts and never learns: servers that load the model themselves, no training worker, no optimiser.

    Or the past versions of a policy, with servers that have one snapshot at a time, of step `step`. Servers sleep
    during training only on a shared pool. Uses vLLM's `reload_weights`, which loads a model's folder in place.
    """

    step = 0  # the servers begin with the policy before training

    def start(self) -> None:
        with self.lock:
            self.start_servers(self.devices.slots())
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
