"""Runtimes of policies that do not learn (frozen, external endpoint), and the base classes of all runtimes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import DictConfig

from marl_verl.backend.verl.rollout.client import DirectClient, PolicyServerManager, single_server
from marl_verl.backend.verl.rollout.devices import Devices, numbered
from marl_verl.backend.verl.rollout.endpoint import KeyedEndpoint
from marl_verl.config.policy_models import endpoint_key
from marl_verl.config.server_names import first_replica_rank
from marl_verl.events import awaited, timed
from marl_verl.team import PolicyConfig


class Runtime:
    """The runtime of a policy. This base class is for an external endpoint or a script: it starts and syncs nothing."""

    def __init__(self, policy: PolicyConfig) -> None:
        self.policy, self.name = policy, policy.name
        self.seconds: dict[str, float] = {}  # part -> its start-up time

    @property
    def early(self) -> bool:
        """Whether the client exists before `start`."""
        return True

    def start(self) -> None:
        """Start workers and servers. Endpoints are checked before a run starts any process (`trainer/run.py`)."""

    def client(self) -> Any:
        """What rollout workers make their client of: the keyed endpoint, verl's client, or None for a script."""
        if self.policy.endpoint is None:
            return None
        return KeyedEndpoint(self.policy.endpoint, endpoint_key(self.name, self.policy.endpoint))

    def sleep(self) -> None:
        """Free the servers' device memory where training shares the device."""

    def sync_weights(self, version: int) -> None:
        """Wake up the servers with the newest weights; they report `version` with every action from now on."""

    def actors(self) -> dict[str, Any]:
        """Description -> Ray actor, for every process whose death ends the run."""
        return {}


class Servers(Runtime):
    """A policy with servers in this run; `config` is the whole config for this policy, in verl's layout."""

    def __init__(self, policy: PolicyConfig, config: DictConfig, devices: Devices) -> None:
        super().__init__(policy)
        self.config, self.devices, self.lock = config, devices, devices.lock(policy.name)
        self._arr = config.actor_rollout_ref

    @property
    def early(self) -> bool:
        return single_server(self.config) is not None  # its name is known before it starts

    def client(self) -> Any:
        name = single_server(self.config)
        return DirectClient(self.config, name) if name else self.servers.get_client()

    def actors(self) -> dict[str, Any]:
        handles = [handle for replica in self.servers.get_replicas() for handle in replica.servers]
        actors = numbered("vLLM server", f" of policy '{self.name}'", handles)
        if self.servers.global_load_balancer is not None:  # of several servers
            actors[f"load balancer of policy '{self.name}'"] = self.servers.global_load_balancer
        return actors

    def _manage(self, workers: Any) -> None:
        rank = first_replica_rank(self._arr.rollout.name)
        self.servers = PolicyServerManager(config=self.config, worker_group=workers, start_rank=rank)

    def _start_servers(self) -> None:
        async def start() -> None:
            await self.servers._initialize_llm_servers()
            await self.servers._init_global_load_balancer()

        with timed(self.seconds, "server"), awaited(f"server of {self.name}"):
            asyncio.run(start())


class FrozenRuntime(Servers):
    """A policy that acts and never learns: servers that load the model themselves, no training worker, no optimiser.

    Its servers sleep during training only on a shared pool.
    """

    def start(self) -> None:
        with self.lock:
            self._manage(self.devices.slots())
            self._start_servers()
            self.sleep()

    def sleep(self) -> None:
        self._call_replicas("sleep")

    def sync_weights(self, version: int) -> None:
        self._call_replicas("wake_up")

    def _call_replicas(self, method: str) -> None:
        async def call() -> None:
            await asyncio.gather(*(getattr(replica, method)() for replica in self.servers.get_replicas()))

        if self.devices.pool.shared and self._arr.rollout.free_cache_engine:
            asyncio.run(call())


class PastRuntime(FrozenRuntime):
    """The past versions of a policy: frozen, with servers that have one snapshot at a time, of step `step`.

    Uses vLLM's `reload_weights`, which loads a model's folder into the server's memory in place.
    """

    step = 0  # the servers begin with the policy before training

    def _start_servers(self) -> None:
        super()._start_servers()
        asyncio.run(self._call("set_global_steps", global_steps=0))

    def load(self, step: int, model: str) -> None:
        """Load a snapshot from a folder; the servers, which must be awake and idle, report its step from now on."""

        async def load() -> None:
            await self._call("collective_rpc", method="reload_weights", kwargs={"weights_path": model})
            await self._call("clear_kv_cache")  # of the former weights
            await self._call("set_global_steps", global_steps=step)

        asyncio.run(load())
        self.step = step

    async def _call(self, name: str, /, **options: Any) -> None:
        """Call the first server of each replica, which reaches the engine's processes on all nodes."""
        first = [replica.servers[0] for replica in self.servers.get_replicas()]
        await asyncio.gather(*(getattr(server, name).remote(**options) for server in first))


class TrainingWorkers:
    """Base of runtimes with a training worker group of verl: a policy, or a critic colocated with it."""

    MESH: ClassVar[str]
    workers: Any
    lock: AbstractContextManager[Any]  # `Devices.lock`, of the policy

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the lock, during calls to the training workers."""
        with self.lock:
            yield

    @property
    def data_parallel_size(self) -> int:
        """Number of data-parallel ranks; each processes a part of the rows."""
        info = self.workers._dispatch_info
        if self.MESH not in info:
            info[self.MESH] = self.workers._query_dispatch_info(self.MESH)
        return int(max(info[self.MESH])) + 1

    def save(self, folder: Path, step: int) -> None:
        """Write model, optimiser and learning-rate schedule below `folder`; for a policy a Hugging Face folder, too."""
        with self.turn():
            self.workers.save_checkpoint(str(folder), None, step, max_ckpt_to_keep=None)

    def load(self, folder: Path) -> None:
        """Load the files that `save` wrote."""
        with self.turn():
            self.workers.load_checkpoint(local_path=str(folder), del_local_after_load=False)
