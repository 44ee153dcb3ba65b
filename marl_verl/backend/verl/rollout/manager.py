"""verl's rollout manager with team rollout workers, which waits for tasks instead of polling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from verl.experimental.agent_loop import AgentLoopManager
from verl.trainer.ppo.v1 import AgentLoopManagerTQ
from verl.utils.tensordict_utils import get_tensordict

from marl_verl import plugins
from marl_verl.backend.verl.rollout.devices import numbered
from marl_verl.backend.verl.rollout.worker import Done, TeamRolloutWorker


class TeamRolloutManager(AgentLoopManagerTQ):
    """Dispatches tasks to the rollout workers. `llm_client`: policy -> client.

    Supports whole batches (`generate_sequences`, then `collect`) and streams of tasks (`dispatch`, then `waiting` and
    `finished`). A validation batch may be dispatched while tasks of a stream are in flight.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = TeamRolloutWorker
        AgentLoopManager.__init__(self, *args, **kwargs)
        self._shares: list[tuple[Any, list[str]]] = []
        self._loads: list[int] = []  # tasks of the stream in flight, per worker
        self._calls: dict[int, Future[list[Done]]] = {}  # worker -> its pending call of `finished`

    async def _init_agent_loop_workers(self) -> None:
        """Start the workers and check that they have this process's plugins."""
        await super()._init_agent_loop_workers()
        mine = plugins.load().fingerprint()
        for number, worker in enumerate(self.agent_loop_workers):
            theirs = tuple(await worker.plugin_fingerprint.remote())
            plugins.check_same(mine, theirs, f"rollout worker {number}")
        self._loads = [0] * len(self.agent_loop_workers)

    def actors(self) -> dict[str, Any]:
        return numbered("rollout worker", "", self.agent_loop_workers)

    def assign(self, policies: Mapping[str, str]) -> None:
        """Let agents act with other policies from the next task on; agent -> policy. No task may be in flight."""
        ray.get([worker.assign.remote(dict(policies)) for worker in self.agent_loop_workers])

    def generate_sequences(self, prompts: Any) -> None:
        """Dispatch tasks without waiting for them."""
        chunks = prompts.chunk(len(self.agent_loop_workers))
        shares = list(zip(self.agent_loop_workers, chunks, strict=False))
        self._shares += [(worker, [str(uid) for uid in chunk["uid"]]) for worker, chunk in shares]
        ray.get([worker.generate_sequences.remote(chunk) for worker, chunk in shares])

    def collect(self) -> list[Done]:
        """Wait until all tasks of `generate_sequences` are finished. Returns those of each worker, in order."""
        shares, self._shares = self._shares, []
        done: list[Done] = ray.get([worker.collect.remote(uids) for worker, uids in shares])
        return done

    def dispatch(self, tasks: Sequence[Mapping[str, Any]], step: int) -> None:
        """Dispatch tasks (`schedule.Task`), each to the least loaded worker. `step` is part of their seeds."""
        shares: dict[int, list[Mapping[str, Any]]] = {}
        for task in tasks:
            least = min(range(len(self._loads)), key=self._loads.__getitem__)
            shares.setdefault(least, []).append(task)
            self._loads[least] += 1
        calls = []
        for number, share in shares.items():
            columns = {name: [task[name] for task in share] for name in share[0]}
            batch = get_tensordict(columns, {"global_steps": step})
            calls.append(self.agent_loop_workers[number].generate_sequences.remote(batch))
        ray.get(calls)

    def waiting(self) -> list[Future[list[Done]]]:
        """A future for each worker with tasks in flight, done when at least one of them is finished."""
        for number, load in enumerate(self._loads):
            if load and number not in self._calls:
                self._calls[number] = self.agent_loop_workers[number].finished.remote().future()
        return list(self._calls.values())

    def finished(self) -> list[Done]:
        """The tasks of all futures that are done. Does not wait. Raises the exceptions of workers."""
        done = []
        for number, call in list(self._calls.items()):
            if call.done():
                del self._calls[number]
                done += call.result()
                self._loads[number] -= len(call.result())
        return done

    def close_gate(self, policy: str) -> None:
        """Hold requests of a policy, and wait until none is in flight. Thread-safe."""
        ray.get([worker.close_gate.remote(policy) for worker in self.agent_loop_workers])

    def open_gate(self, policy: str) -> None:
        """Release the requests of a policy. Thread-safe."""
        ray.get([worker.open_gate.remote(policy) for worker in self.agent_loop_workers])
