"""Policies that do not learn: servers only, of this run or outside of it; and what all policies at work have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeVar

from omegaconf import DictConfig

from marl_verl.config.server_names import first_replica_rank
from marl_verl.rollout.client import DirectClient, PolicyServerManager, single_server
from marl_verl.rollout.devices import Devices
from marl_verl.team import PolicyConfig

T = TypeVar("T")


class Runtime:
    """A policy at work. Of an endpoint outside the run: there is nothing to start and nothing to sync.

    Attributes:
        seconds: what -> how long it took at the start.
    """

    def __init__(self, policy: PolicyConfig) -> None:
        self.policy, self.name = policy, policy.name
        self.seconds: dict[str, float] = {}

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
        """Wake the servers up, with the newest weights.

        Args:
            version: what the servers report with every action from now on.
        """

    def actors(self) -> dict[str, Any]:
        """What it is -> the Ray actor, of every process that the run cannot do without."""
        return {}


class Servers(Runtime):
    """A policy with servers of this run.

    Args:
        config: the whole config as this policy sees it.
        devices: where they run.
    """

    def __init__(self, policy: PolicyConfig, config: DictConfig, devices: Devices) -> None:
        super().__init__(policy)
        self.config, self.devices = config, devices
        self._arr = config.actor_rollout_ref

    @property
    def early(self) -> bool:
        """Yes with one server, whose name is known."""
        return single_server(self.config) is not None

    def client(self) -> Any:
        name = single_server(self.config)
        return DirectClient(self.config, name) if name else self.servers.get_client()

    def actors(self) -> dict[str, Any]:
        """The server actors, by what they are."""
        handles = [handle for replica in self.servers.get_replicas() for handle in replica.servers]
        found = {f"{nth('vLLM server', i, handles)} of policy '{self.name}'": each for i, each in enumerate(handles)}
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

        self._timed("server", lambda: asyncio.run(start()))

    def _timed(self, name: str, call: Callable[[], T]) -> T:
        begun = time.monotonic()
        result = call()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begun
        return result


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
        if self._sleeps:
            self._each("sleep")

    def sync_weights(self, version: int) -> None:
        if self._sleeps:
            self._each("wake_up")

    @property
    def _sleeps(self) -> bool:
        return self.devices.pool.shared and bool(self._arr.rollout.free_cache_engine)

    def _each(self, method: str) -> None:
        async def call() -> None:
            await asyncio.gather(*(getattr(replica, method)() for replica in self.servers.get_replicas()))

        asyncio.run(call())


def nth(what: str, number: int, of: Any) -> str:
    return what if len(of) == 1 else f"{what} {number}"


def ranks(workers: Any, mesh: str) -> int:
    """Data-parallel ranks of a worker group, which each take a part of the rows."""
    info = workers._dispatch_info
    if mesh not in info:
        info[mesh] = workers._query_dispatch_info(mesh)
    return int(max(info[mesh])) + 1
