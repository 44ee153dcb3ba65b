"""A policy that does not learn, at work: servers only, of this run or outside of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from omegaconf import DictConfig

from marl_verl.rollout.client import DirectClient, PolicyServerManager, single_server
from marl_verl.rollout.servers import first_replica_rank
from marl_verl.rollout.slots import hold
from marl_verl.team import Policy
from marl_verl.trainer.pools import Place

T = TypeVar("T")


class Runtime(Protocol):
    """What every policy at work has, whether it learns or not.

    Attributes:
        seconds: what -> how long it took at the start.
        early: whether its client can be had before its start.
    """

    name: str
    policy: Policy
    seconds: dict[str, float]

    @property
    def early(self) -> bool: ...
    def start(self) -> None:
        """Bring it up."""
        ...

    def client(self) -> Any:
        """What a rollout worker asks it with."""
        ...

    def rest(self) -> None:
        """Sampling is over: make room, where it has to."""
        ...

    def ready(self, step: int) -> None:
        """Sampling is to begin: with the newest weights."""
        ...

    def actors(self) -> dict[str, Any]:
        """What it is -> the Ray actor, of every process that the run cannot do without."""
        ...


class Servers:
    """The servers of one policy.

    Args:
        config: the whole config as this policy sees it.
        place: where they run.
    """

    def __init__(self, policy: Policy, config: DictConfig, place: Place) -> None:
        self.policy = policy
        self.name = policy.name
        self.config = config
        self.place = place
        self.seconds: dict[str, float] = {}
        self._arr = config.actor_rollout_ref

    @property
    def early(self) -> bool:
        """With one server, whose name is known beforehand."""
        return single_server(self.config) is not None

    def client(self) -> Any:
        """verl's client for this policy's servers."""
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
        """Start the servers."""
        from verl.plugin.platform import get_platform

        with self.place.turn():
            self._manage(hold(self.place.resources(), get_platform().ray_resource_name()))
            self._start_servers()
            self.rest()

    def rest(self) -> None:
        """Free the device's memory, where somebody else needs it."""
        if self._sleeps:
            self._each("sleep")

    def ready(self, step: int) -> None:
        """Take it back."""
        if self._sleeps:
            self._each("wake_up")

    @property
    def _sleeps(self) -> bool:
        return self.place.pool.shared and bool(self._arr.rollout.free_cache_engine)

    def _each(self, method: str) -> None:
        async def call() -> None:
            await asyncio.gather(*(getattr(replica, method)() for replica in self.servers.get_replicas()))

        asyncio.run(call())


class EndpointRuntime:
    """A policy outside: nothing to start, nothing to sync."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.name = policy.name
        self.seconds: dict[str, float] = {}

    early = True

    def start(self) -> None:
        """Nothing: it has been asked before anything else was started (`trainer/run.py`)."""
        return None

    def client(self) -> Any:
        """The endpoint's address: rollout workers ask it themselves."""
        return self.policy.endpoint

    def rest(self) -> None:
        return None

    def ready(self, step: int) -> None:
        return None

    def actors(self) -> dict[str, Any]:
        """None of ours."""
        return {}


def nth(what: str, number: int, of: Any) -> str:
    return what if len(of) == 1 else f"{what} {number}"
