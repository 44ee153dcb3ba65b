"""The sampling context of a run: acts are requests to the policies' servers, with a seed if the run is repeatable."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from marl_verl.algo.sampling.context import GREEDY, Candidate, SamplingContext, TaskContext
from marl_verl.backend.rollout.clients import Client
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import untrained_sampling
from marl_verl.episode.turn import with_ids
from marl_verl.errors import MarlError
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, acting
from marl_verl.threads import Limit

LATE = "no action within {:g} s (marl.rollout.act_seconds)"


def request_seed(*identity: Any) -> int:
    """A reproducible seed in [0, 2^31) from (run seed, step, task, session, agent, slot, candidate)."""
    digest = hashlib.blake2b(json.dumps(identity, default=str).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31


@dataclass(frozen=True)
class WorkerContext:
    """The team in a rollout worker: its task context, the clients of its policies, and the run's seed.

    `repeatable`: every request has a seed. `trained`: policies that learn from what they sample. `gates`: policy -> the
    gate of the schedule (`extensions.py`); the time of waiting there is not a part of `marl.rollout.act_seconds`.
    """

    task_context: TaskContext
    clients: Mapping[str, Client]
    seed: int
    repeatable: bool = True
    trained: frozenset[str] = frozenset()
    gates: Mapping[str, Any] = field(default_factory=dict)


class PolicySamplingContext(SamplingContext):
    """The `SamplingContext` of one task.

    Args:
        step: training step, part of the seeds.
        held_out: sampling parameters of a validation; None for those of policies and agents, as in training.
    """

    def __init__(
        self, parts: WorkerContext, task: Task, uid: str, step: int, held_out: Mapping[str, Any] | None
    ) -> None:
        super().__init__(parts.task_context, task, uid)
        self._parts, self._step, self._held_out = parts, step, held_out

    def seed(self, session: int) -> int:
        """A seed from (run seed, step, task, session)."""
        return request_seed(self._parts.seed, self._step, self.task.id, session)

    def too_long(self, act: Act) -> str | None:
        who, tools = acting(self.task_context.agents, act), (act.parameters or {}).get("tools")
        return self._parts.clients[who.policy].too_long(who.conversation(act.observation), tools)

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Sample an action from the agent's policy. Raises ObservationTooLong, and TimeoutError after `act_seconds`."""
        who = acting(self.task_context.agents, act, agent)
        sampling = self._sampling(who, act.parameters or {})
        if candidate == GREEDY:
            sampling |= {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
        if self._parts.repeatable:
            place = (session, act.agent, act.slot, candidate) + ((who.name,) if who.name != act.role else ())
            sampling["seed"] = request_seed(self._parts.seed, self._step, self.task.id, *place)
        gate, seconds = self._parts.gates.get(who.policy), self.limits.act_seconds
        async with gate.request() if gate is not None else nullcontext(), Limit(seconds, LATE):  # not of the gate
            # one id for all requests of an episode: verl routes them to the server with their cached prefix
            request = (who.conversation(act.observation), sampling, f"{self.uid}-{session}", act)
            action = await self._parts.clients[who.policy].answer(*request)
            return with_ids(act, action) if act.parameters else action

    def _sampling(self, who: AgentConfig, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The sampling parameters of a request: in training of the policy, then of the agent, then those that the act
        asks for; held out only its limits. MarlError for a distribution that the update does not know."""
        limits = {"max_tokens": who.sampling.max_tokens, "stop": who.sampling.stop}
        if self._held_out is None:
            preferred = {name: getattr(who.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
            preferred = {name: value for name, value in preferred.items() if value is not None}
            sampling = {**self._parts.clients[who.policy].sampling, **preferred, **limits}
            names = ("temperature", "top_p")
            if asked and who.policy in self._parts.trained:
                trained_at = {name: sampling[name] for name in names}
                if (why := untrained_sampling(asked, trained_at, f"policy '{who.policy}'", who.policy)) is not None:
                    raise MarlError(why)
            sampling |= {name: asked[name] for name in names if name in asked}
        else:
            sampling = {**self._held_out, **limits}
        if "max_tokens" in asked:
            sampling["max_tokens"] = min(asked["max_tokens"], sampling["max_tokens"] or asked["max_tokens"])
        return sampling | ({"stop": asked["stop"]} if "stop" in asked else {})
