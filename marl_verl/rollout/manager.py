"""The rollout manager: verl's, with team rollout workers and a way to wait for tasks instead of polling for them."""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.ray_utils import auto_await

from marl_verl import plugins
from marl_verl.rollout.worker import Report, TeamRolloutWorker


class TeamRolloutManager(AgentLoopManagerTQ):
    """Hands batches of tasks to the rollout workers. `llm_client` is a client for each policy, by name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = TeamRolloutWorker
        AgentLoopManager.__init__(self, *args, **kwargs)
        self._shares: list[tuple[Any, list[str]]] = []

    @classmethod
    @auto_await
    async def create(cls, *args: Any, **kwargs: Any) -> TeamRolloutManager:
        """Start the workers and compare their plugins with this process's."""
        instance = cls(*args, **kwargs)
        await instance._init_agent_loop_workers()
        mine = plugins.load().fingerprint()
        for number, worker in enumerate(instance.agent_loop_workers):
            theirs = tuple(await worker.plugin_fingerprint.remote())
            plugins.check_same(mine, theirs, f"rollout worker {number}")
        return instance

    def generate_sequences(self, prompts: Any) -> None:
        """Dispatch tasks without waiting for them."""
        chunks = prompts.chunk(len(self.agent_loop_workers))
        shares = list(zip(self.agent_loop_workers, chunks, strict=False))
        self._shares += [(worker, [str(uid) for uid in chunk["uid"]]) for worker, chunk in shares]
        ray.get([worker.generate_sequences.remote(chunk) for worker, chunk in shares])

    def collect(self) -> list[Report]:
        """Wait for every task dispatched so far; their rows are in TransferQueue then. Returns them in order."""
        shares, self._shares = self._shares, []
        reports = ray.get([worker.collect.remote(uids) for worker, uids in shares])
        return [report for share in reports for report in share]
