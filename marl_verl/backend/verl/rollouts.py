"""Rollout workers on Ray, what they act with, and their rows in TransferQueue."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tensordict import TensorDict
from verl.workers.rollout.llm_server import LLMServerClient

from marl_verl import plugins
from marl_verl.backend.protocol import Column, Report, TaskRow
from marl_verl.backend.rollout.blocked import end_if_blocked, end_process
from marl_verl.backend.rollout.worker import RolloutWorker, collect_seldom
from marl_verl.backend.verl.devices import numbered
from marl_verl.config.hardware import cpu_run
from marl_verl.plugins import loading

PARTITION = "train"


class RayRollouts:
    """Rollouts with `workers` on all nodes in turn; `clients`: policy -> `Runtime.client`."""

    def __init__(self, config: Any, clients: Mapping[str, Any]) -> None:
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) > 0]
        kind: Any = ray.remote(RolloutActor)
        self.workers = []
        for number in range(int(config.actor_rollout_ref.rollout.agent.num_workers)):
            where = NodeAffinitySchedulingStrategy(node_id=nodes[number % len(nodes)], soft=True)
            options = {"name": f"rollout_worker_{number}_{uuid.uuid4().hex[:8]}", "scheduling_strategy": where}
            # tasks of the stream must not delay other calls
            self.workers.append(kind.options(**options, max_concurrency=100_000).remote(config, dict(clients)))
        mine = plugins.load().fingerprint()
        for number, worker in enumerate(self.workers):
            theirs = tuple(ray.get(worker.__ray_call__.remote(lambda _: plugins.load().fingerprint())))
            loading.check_same(mine, theirs, f"rollout worker {number}")

    def actors(self) -> dict[str, Any]:
        return numbered("rollout worker", "", self.workers)

    def assign(self, policies: Mapping[str, str]) -> None:
        ray.get([worker.assign.remote(dict(policies)) for worker in self.workers])

    def sample(self, tasks: Sequence[TaskRow], step: int, validate: bool = False) -> list[Report]:
        size = -(-len(tasks) // len(self.workers))
        shares = [list(tasks[first : first + size]) for first in range(0, len(tasks), size or 1)]
        calls = zip(self.workers, shares, strict=False)
        played = ray.get([worker.sample.remote(share, step, validate) for worker, share in calls])
        return [report for reports in played for report in reports]


class RolloutActor(RolloutWorker):
    """A rollout worker in a process of its own; Ray runs its methods in one event loop."""

    def __init__(self, config: Any, clients: Mapping[str, Any]) -> None:
        tq.init()
        super().__init__(config, clients, QueueStore())
        self._writing, self._watched = asyncio.Lock(), False
        if cpu_run():
            from marl_verl.backend.verl.platforms.cpu import return_memory

            return_memory()  # of loading tokenizers
        collect_seldom()

    async def sample(self, tasks: list[TaskRow], step: int, validate: bool) -> list[Report]:
        if not self._watched:
            self._watched = True
            end_if_blocked(asyncio.get_running_loop(), self.config.marl.rollout, end_process)
        played = await asyncio.gather(*(self.play(task, step, validate) for task in tasks))
        async with self._writing:  # one thread at a time uses TransferQueue's client
            return await asyncio.to_thread(self.stored, played)

    async def gate(self, policy: str, method: str) -> None:
        """Call a method of a policy's gate (`WorkerContext`)."""
        await getattr(self.parts.gates[policy], method)()


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


class QueueStore:
    """A `RowStore`. `tq.init` must have been called in this process."""

    def put(self, keys: Sequence[str], fields: Mapping[str, Column]) -> None:
        """Write fields of rows. `kv_batch_put` would copy all tags several times, which takes most of its time. And
        TransferQueue divides a nested tensor into rows five times, which takes a quarter of the time with strided ones
        (docs/benchmarks.md)."""
        strided, client = dict[str, torch.Tensor](), tq.get_client()
        for name, column in fields.items():
            rows = column.unbind() if isinstance(column, torch.Tensor) else column
            strided[name] = torch.nested.as_nested_tensor(list(rows), layout=torch.strided)
        meta = client.kv_retrieve_meta(keys=list(keys), partition_id=PARTITION, create=True)
        meta.custom_meta = []  # the tags
        client.put(TensorDict(strided, batch_size=len(keys)), meta)

    def get(self, keys: Sequence[str], names: Sequence[str]) -> dict[str, torch.Tensor]:
        rows = tq.kv_batch_get(keys=list(keys), partition_id=PARTITION, select_fields=list(names))
        return {name: rows[name] for name in names}

    def remove(self, keys: Sequence[str]) -> None:
        if keys:  # the client refuses an empty list
            tq.kv_clear(keys=list(keys), partition_id=PARTITION)
