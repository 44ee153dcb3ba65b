"""Adapter (training worker side) of a policy's servers; apart from `vllm_servers.py`, whose imports cost seconds."""

import os
from typing import Any

import torch
from verl.workers.rollout.vllm_rollout import ServerAdapter

from marl_verl.config.hardware import first_replica_rank
from marl_verl.config.placement import server_gpus, uses_all_cores


class PolicyServerAdapter(ServerAdapter):
    """Training worker side: finds the server of its policy by name and sends weights to it.

    `adapter` is the number of the adapter that is sent, on a shared base model.
    """

    adapter: int | None = None

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        if replica_rank == -1:
            replica_rank = first_replica_rank(config.name) + int(os.environ["RANK"]) // server_gpus(config)
        if uses_all_cores(model_config.path):
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["WORLD_SIZE"])))
        super().__init__(config, model_config, device_mesh, replica_rank=replica_rank)

    async def update_weights(self, weights: Any, global_steps: int | None = None, **options: Any) -> None:
        """verl's method, for one adapter of several: its server has a version for each."""
        if self.adapter is None:
            await super().update_weights(weights, global_steps=global_steps, **options)
            return
        await super().update_weights(weights, adapter=self.adapter, **options)
        if self._has_server:
            await self.server_handle.set_version.remote(self.adapter, global_steps)
