"""The sampling context of a run: acts are requests to the policies' servers, with a seed if the run is repeatable.

Each policy has a gate: no request is in flight while the policy's weights change, so every action is sampled by one
version. Time that a request waits at a gate counts for its episode's limit, not for `marl.rollout.act_seconds`.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from marl_verl.algo.sampling.base import GREEDY, Candidate
from marl_verl.algo.sampling.context import SamplingContext, TaskContext
from marl_verl.episode import Act, Action
from marl_verl.episode.messages import Message, Observation, untrained_sampling
from marl_verl.episode.turn import role_of, with_ids
from marl_verl.errors import MarlError
from marl_verl.tasks import Task
from marl_verl.team import AgentConfig, acting
from marl_verl.threads import Limit


class ObservationTooLong(MarlError):
    """An observation exceeds the policy's prompt limit. The episode fails; observations are never truncated."""


class Client(Protocol):
    """The client of one policy: served by this run or an external endpoint, or a script."""

    sampling: Mapping[str, Any]
    """Default sampling parameters: `temperature`, `top_p`, `top_k`, and others that its servers accept."""
    alone: bool = False  # whether it acts in one episode at a time

    def too_long(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> str | None:
        """Why a conversation exceeds the policy's limit; None if it does not, or only its server knows."""
        return None

    async def answer(self, messages: list[Message], sampling: Mapping[str, Any], request_id: str, act: Act) -> Action:
        """Sample one action. ObservationTooLong if the prompt exceeds the policy's limit, MarlError without an action.

        Args:
            messages: the whole conversation, instructions first.
            sampling: `temperature`, `top_p`, `top_k` (-1: all tokens), `max_tokens` (None: the policy's own limit),
                `stop` (None: the policy's own), `seed` unless `marl.run.repeatable` is off; other keys are passed
                to the run's own servers.
            request_id: equal for all requests of an episode.
            act: what is asked for, of which a client reads the `parameters` (`tools`, `tool_choice`, `response_format`)
                and the `former` action, whose token ids the prompt begins with if the conversation continues it.
        """


class Gate:
    """Holds requests of one policy in one rollout worker. Call its methods in the worker's event loop."""

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._inside = 0

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Wait until the gate is open, then count as in flight until the end of the block."""
        while not self._open.is_set():  # it may close again before this task is scheduled
            await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def close(self) -> None:
        """Hold new requests, and wait until none is in flight."""
        self._open.clear()
        await self._empty.wait()

    def open(self) -> None:
        """Release held requests and accept new ones."""
        self._open.set()


def default_sampling(rollout: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters that every client has by default, of verl's `rollout`."""
    return {name: rollout[name] for name in ("temperature", "top_p", "top_k")}


def request_seed(*identity: Any) -> int:
    """A reproducible seed in [0, 2^31) from (run seed, step, task, session, agent, slot, candidate)."""
    digest = hashlib.blake2b(json.dumps(identity, default=str).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % 2**31


@dataclass(frozen=True)
class WorkerContext:
    """The team in a rollout worker: its task context, the clients of its policies, and the run's seed.

    `repeatable`: every request has a seed. `trained`: policies that learn from what they sample.
    """

    task_context: TaskContext
    clients: Mapping[str, Client]
    seed: int
    repeatable: bool = True
    trained: frozenset[str] = frozenset()


class PolicySamplingContext(SamplingContext):
    """The `SamplingContext` of one task.

    Args:
        step: training step, part of the seeds.
        held_out: sampling parameters of a validation; None for those of policies and agents, as in training.
        gates: policy -> its gate; requests of a policy without a gate are never held.
    """

    def __init__(
        self,
        parts: WorkerContext,
        task: Task,
        uid: str,
        step: int,
        held_out: Mapping[str, Any] | None,
        gates: Mapping[str, Gate] | None = None,
    ) -> None:
        super().__init__(parts.task_context, task, uid)
        self._parts, self._step, self._held_out, self._gates = parts, step, held_out, gates or {}

    def seed(self, session: int) -> int:
        """A seed from (run seed, step, task, session)."""
        return request_seed(self._parts.seed, self._step, self.task.id, session)

    def too_long(self, agent: str, observation: Observation, tools: Sequence[Any] | None) -> str | None:
        who = self.task_context.agents[role_of(agent)]
        return self._parts.clients[who.policy].too_long(who.conversation(observation), tools)

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Sample an action from the agent's policy. Raises ObservationTooLong, and TimeoutError after `act_seconds`."""
        who = acting(self.task_context.agents, act, agent)
        client = self._parts.clients[who.policy]
        messages: list[Message] = who.conversation(act.observation)
        sampling = dict(client.sampling if self._held_out is None else self._held_out)
        if self._held_out is None:
            own = {name: getattr(who.sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")}
            sampling.update({name: value for name, value in own.items() if value is not None})
        sampling |= {"max_tokens": who.sampling.max_tokens, "stop": who.sampling.stop}
        asked = act.parameters or {}
        if asked:
            sampling |= self._asked(asked, sampling, who)
        if candidate == GREEDY:
            sampling |= {"temperature": 0.0, "top_p": 1.0, "top_k": -1}
        if self._parts.repeatable:
            place = (session, act.agent, act.slot, candidate) + ((who.name,) if who.name != act.role else ())
            sampling["seed"] = request_seed(self._parts.seed, self._step, self.task.id, *place)
        seconds = self.limits.act_seconds
        gate = self._gates.get(who.policy)
        async with gate.request() if gate is not None else nullcontext():
            limit = Limit(seconds)
            try:
                async with limit:
                    # one id for all requests of an episode: verl routes them to the server with their cached prefix
                    request_id = f"{self.uid}-{session}"
                    action = await client.answer(messages, sampling, request_id, act)
                    return with_ids(act, action) if asked else action
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise TimeoutError(f"no action within {seconds:g} s (marl.rollout.act_seconds)") from error

    def _asked(self, asked: Mapping[str, Any], sampling: Mapping[str, Any], who: AgentConfig) -> dict[str, Any]:
        """The sampling parameters that a request sets. MarlError for a distribution that the update does not know."""
        names = ("temperature", "top_p")
        if who.policy in self._parts.trained and self._held_out is None:
            trained_at = {name: sampling[name] for name in names}
            if (why := untrained_sampling(asked, trained_at, f"policy '{who.policy}'", who.policy)) is not None:
                raise MarlError(why)
        changed = {name: asked[name] for name in names if name in asked and self._held_out is None}
        limits = [limit for limit in (sampling["max_tokens"], asked.get("max_tokens")) if limit is not None]
        return changed | {"max_tokens": min(limits, default=None), "stop": asked.get("stop", sampling["stop"])}
