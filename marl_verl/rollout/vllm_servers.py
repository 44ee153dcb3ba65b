"""Server and replica (driver side) of a policy, with names and ranks per policy.

Uses verl internals: `vLLMReplica` and `vLLMHttpServer`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from verl.workers.rollout.replica import RolloutMode
from verl.workers.rollout.vllm_rollout import vllm_async_server
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from marl_verl.config.placement import server_gpus
from marl_verl.config.server_names import first_replica_rank
from marl_verl.platforms.active import cpu_run
from marl_verl.rollout.devices import Slots


class PolicyServer(vLLMHttpServer):
    """The server actor of one replica, without HTTP: its requests are calls of the actor, which Ray delivers.

    An HTTP server would answer every user of the machine.
    """

    async def run_server(self, args: Any) -> None:
        """verl's method; the server's port, a part of its name in verl's load balancer, is its replica rank."""

        async def without_http(app: Any, args: Any, address: str) -> tuple[int, asyncio.Task[None]]:
            return self.replica_rank, asyncio.create_task(asyncio.sleep(0))

        vllm_async_server.run_uvicorn = without_http
        if cpu_run() and server_gpus(self.config) == 1:
            from marl_verl.rollout.engine_thread import use_threads

            use_threads()
        await super().run_server(args)


class PolicyReplica(vLLMReplica):
    """Driver side: launches the server actors of one replica of one policy."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.server_class = ray.remote(PolicyServer)

    async def init_hybrid(self, worker_group: Any) -> None:
        """verl's method, with the replica's workers counted from the policy's first replica rank."""
        # on slots there are no training workers, and no weights are ever synced to the server
        self.rollout_mode = RolloutMode.COLOCATED if isinstance(worker_group, Slots) else RolloutMode.HYBRID
        local = self.replica_rank - first_replica_rank(self.config.name)
        self.workers = list(worker_group.workers)[self.world_size * local : self.world_size * (local + 1)]
        await self.launch_servers()

    def _get_server_name_prefix(self) -> str:
        return f"{self.config.name}_"
