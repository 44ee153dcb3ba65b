"""What a sampler drives for one task in a real run: acts go to the policies' servers, with a seed in every request."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from marl_verl.episode import Act, Action, Message
from marl_verl.rollout.asking import Client, request_seed
from marl_verl.rollout.gate import Gate
from marl_verl.sampling import Candidate
from marl_verl.sampling.rollouts import Scene, SceneRollouts
from marl_verl.tasks.base import Task


@dataclass(frozen=True)
class TeamParts:
    """A team brought to life in a rollout worker: its scene, its policies, and the run's seed."""

    scene: Scene
    clients: Mapping[str, Client]
    seed: int


class TaskRollouts(SceneRollouts):
    """The `Rollouts` of one task.

    Args:
        parts: the team.
        task: the problem.
        uid: of this task instance.
        step: training step, enters the seeds.
        sessions: attempts at the task.
        held_out: sampling parameters of a validation; None in training, where policies and agents have their own.
        gates: policy -> what holds its requests back while its weights change; a policy without one is never held.
    """

    def __init__(
        self,
        parts: TeamParts,
        task: Task,
        uid: str,
        step: int,
        sessions: int,
        held_out: Mapping[str, Any] | None,
        gates: Mapping[str, Gate] | None = None,
    ) -> None:
        super().__init__(parts.scene, task, uid, sessions)
        self._parts, self._step, self._held_out, self._gates = parts, step, held_out, gates or {}

    def seed(self, session: int) -> int:
        """From (run seed, step, task, session)."""
        return request_seed(self._parts.seed, self._step, self.task.id, session)

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Ask the agent's policy, with a seed from (run seed, step, task, session, agent, slot, candidate).

        Raises:
            ObservationTooLong: the prompt is longer than its limit.
            TimeoutError: the act took longer than its limit.
        """
        who = self.scene.agents[agent or act.agent]
        client = self._parts.clients[who.policy]
        messages: list[Message] = list(act.observation)
        if who.instructions:
            messages.insert(0, {"role": "system", "content": who.instructions})
        sampling = dict(client.sampling if self._held_out is None else self._held_out)
        if self._held_out is None:
            own = {name: getattr(who.sampling, name) for name in ("temperature", "top_p", "top_k")}
            sampling.update({name: value for name, value in own.items() if value is not None})
        sampling["max_tokens"] = who.sampling.max_tokens
        place = (session, act.agent, act.slot, candidate) + ((who.name,) if who.name != act.agent else ())
        sampling["seed"] = request_seed(self._parts.seed, self._step, self.task.id, *place)
        seconds = self.limits.act_seconds
        gate = self._gates.get(who.policy)
        async with gate.request() if gate is not None else nullcontext():
            limit = asyncio.timeout(seconds)  # a request that the gate holds does not use up its time
            try:
                async with limit:
                    # one id for all requests of an episode: verl keeps them on the server that has their prefix cached
                    return await client.answer(messages, sampling, request_id=f"{self.uid}-{session}")
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(f"no action within {seconds:g} s (marl.rollout.act_seconds)") from error
