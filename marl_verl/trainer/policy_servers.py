"""Policies that do not learn: servers only, of this run or outside of it; and what runtimes have in common."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig

from marl_verl.config.server_names import first_replica_rank
from marl_verl.rollout.client import DirectClient, PolicyServerManager, single_server
from marl_verl.rollout.devices import Devices, numbered
from marl_verl.team import PolicyConfig
from marl_verl.trainer.metrics import timed


class Runtime:
    """A policy at work. Of an endpoint outside the run: there is nothing to start and nothing to sync."""

    def __init__(self, policy: PolicyConfig) -> None:
        self.policy, self.name = policy, policy.name
        self.seconds: dict[str, float] = {}  # what -> how long it took at the start

    @property
    def early(self) -> bool:
        """Whether the client exists before `start`."""
        return True

    def start(self) -> None:
        """Start workers and servers. An endpoint was checked before anything else was started (`trainer/run.py`)."""

    def client(self) -> Any:
        """What a rollout worker samples with: the endpoint's address, or verl's client for the servers."""
        return self.policy.endpoint

    def sleep(self) -> None:
        """Free the servers' device memory, where training shares it."""

    def sync_weights(self, version: int) -> None:
        """Wake the servers up, with the newest weights; they report `version` with every action from now on."""

    def actors(self) -> dict[str, Any]:
        """What it is -> the Ray actor, of every process that the run cannot do without."""
        return {}


class Servers(Runtime):
    """A policy with servers of this run; `config` is the whole config as this policy sees it."""

    def __init__(self, policy: PolicyConfig, config: DictConfig, devices: Devices) -> None:
        super().__init__(policy)
        self.config, self.devices = config, devices
        self._arr = config.actor_rollout_ref

    @property
    def early(self) -> bool:
        return single_server(self.config) is not None  # then its name is known

    def client(self) -> Any:
        name = single_server(self.config)
        return DirectClient(self.config, name) if name else self.servers.get_client()

    def actors(self) -> dict[str, Any]:
        handles = [handle for replica in self.servers.get_replicas() for handle in replica.servers]
        found = numbered("vLLM server", f" of policy '{self.name}'", handles)
        if self.servers.global_load_balancer is not None:  # of several servers
            found[f"load balancer of policy '{self.name}'"] = self.servers.global_load_balancer
        return found

    def _manage(self, workers: Any) -> None:
        rank = first_replica_rank(self._arr.rollout.name)
        self.servers = PolicyServerManager(config=self.config, worker_group=workers, start_rank=rank)

    def _start_servers(self) -> None:
        async def start() -> None:
            await self.servers._initialize_llm_servers()
            await self.servers._init_global_load_balancer()

        with timed(self.seconds, "server"):
            asyncio.run(start())


class FrozenRuntime(Servers):
    """A policy that acts and never learns: servers that read the model themselves, no training worker, no optimiser.

    On a pool that it shares its servers sleep while others learn; else they stay as they are.
    """

    def start(self) -> None:
        with self.devices.acquire():
            self._manage(self.devices.slots())
            self._start_servers()
            self.sleep()

    def sleep(self) -> None:
        self._each("sleep")

    def sync_weights(self, version: int) -> None:
        self._each("wake_up")

    def _each(self, method: str) -> None:
        async def call() -> None:
            await asyncio.gather(*(getattr(replica, method)() for replica in self.servers.get_replicas()))

        if self.devices.pool.shared and self._arr.rollout.free_cache_engine:
            asyncio.run(call())


class TrainingWorkers:
    """What has a worker group of verl that learns: a policy, or a critic in the same processes."""

    MESH: ClassVar[str]
    workers: Any

    @property
    def data_parallel_size(self) -> int:
        """Ranks that each take a part of the rows."""
        info = self.workers._dispatch_info
        if self.MESH not in info:
            info[self.MESH] = self.workers._query_dispatch_info(self.MESH)
        return int(max(info[self.MESH])) + 1

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimiser and schedule, of a policy a Hugging Face folder too, below `folder`."""
        self.workers.save_checkpoint(str(folder), None, step, max_ckpt_to_keep=None)

    def load(self, folder: Path) -> None:
        """Read what `save` wrote."""
        self.workers.load_checkpoint(local_path=str(folder), del_local_after_load=False)
