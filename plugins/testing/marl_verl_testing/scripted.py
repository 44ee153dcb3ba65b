"""A team without models: scripted policies and their sampling context."""

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from marl_verl.algo.sampling import Candidate
from marl_verl.algo.sampling.context import RoleReward, SamplingContext, TaskContext
from marl_verl.episode import Act, Action, Workflow
from marl_verl.episode.messages import as_message, message_text, untrained_sampling
from marl_verl.episode.turn import role_of, with_ids
from marl_verl.errors import MarlError, check_known
from marl_verl.models.chat import first_stop
from marl_verl.tasks import Task, TaskSet
from marl_verl.team import AgentConfig

Request = tuple[int, tuple[str, str], Candidate, str]
"""(session, act's key, candidate, agent that acts): these determine a request's seed."""

Text = str | Mapping[str, Any]
"""A text, or an assistant message: `{"content": "", "tool_calls": [{"name": "add", "arguments": {"a": 1}}]}`."""

Reply = Text | Sequence[Text] | Callable[..., Text]
"""An agent's text: a constant; one per turn (the last one is repeated); or a function of the act, or of (act, session,
candidate) if attempts shall differ. Instead of a text, it may be an assistant message with tool calls."""


def shown(act: Act) -> str:
    """The content of the last message of the observation."""
    return str(act.observation[-1]["content"])


def scripted_action(act: Act, reply: Text) -> Action:
    """An action with synthetic tokens: one id per byte of the text, log-probability -1; it ends at a stop text."""
    message = as_message({"role": "assistant", **({"content": reply} if isinstance(reply, str) else reply)})
    if stop := first_stop(message["content"], (act.parameters or {}).get("stop", ())):
        message["content"] = message["content"].partition(stop)[0]
    ids = list(message_text(message).encode())
    prompt = "\n".join(message_text(seen) for seen in act.observation)
    action = Action(
        message["content"], list(prompt.encode()), ids, [-1.0] * len(ids), stop_reason="stop", version=0, stop=stop
    )
    calls, thought = message.get("tool_calls", []), message.get("reasoning_content")
    return with_ids(act, replace(action, tool_calls=calls, reasoning=thought)) if calls or thought else action


@dataclass(frozen=True)
class ScriptedPolicy:
    """Fake policies with scripted replies.

    Attributes:
        sampling: agent -> the `temperature` and `top_p` at which its policy is trained, where they are not 1; a request
            that sets others is an error, as in a run. None: an agent that is not trained, whose requests may set any.
    """

    replies: Mapping[str, Reply]  # of every agent of the team
    context: Mapping[str, int] = field(default_factory=dict)  # agent -> the longest conversation of its client
    sampling: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.replies)

    def act(self, act: Act, session: int = 0, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The scripted action of `agent` (default: `act.agent`), or of its role. MarlError: no script, or a temperature
        that a run refuses (see `sampling`)."""
        name = agent or act.agent
        name = name if name in self.replies else role_of(name)
        check_known("scripted agent", name, self.replies)
        if act.parameters and (trained_at := self.sampling.get(name, {})) is not None:
            settings = {"temperature": 1.0, "top_p": 1.0, **trained_at}
            if (why := untrained_sampling(act.parameters, settings, f"agent '{name}'")) is not None:
                raise MarlError(why)
        reply = self.replies[name]
        if callable(reply):
            text = reply(act) if len(inspect.signature(reply).parameters) == 1 else reply(act, session, candidate)
        else:
            text = reply if isinstance(reply, str | Mapping) else reply[min(act.turn, len(reply) - 1)]
        return scripted_action(act, text)


class _Anything(TaskSet):
    quick = True

    def score(self, task: Task, answer: Any) -> float:
        return 1.0


class ScriptedContext(SamplingContext):
    """`SamplingContext` without a model, for testing samplers and credits.

    Args:
        policy: scripted replies of the agents.
        tasks: scores the answers; without it every answer scores 1.
        seed: session g runs with seed + g.
        delay: (act, session) -> event loop iterations before the action arrives, for deterministic arrival orders.
        order: delays every action by 0 to 40 iterations, enough to swap any two of a small workflow; each number in
            another way.
        failing: whether a request fails, or the error with which it does.
        rewards: agent -> its role reward.
        sides: agent -> its side, for a task set that scores sides.
        untrained: agents whose policies are not trained: their acts are parts of transitions in a tree.
        options: of the `TaskContext`: mix, limits.
    """

    def __init__(
        self,
        workflow: Workflow,
        task: Task,
        policy: ScriptedPolicy,
        tasks: TaskSet | None = None,
        seed: int = 0,
        delay: Callable[[Act, int], int] | None = None,
        rewards: Mapping[str, RoleReward] | None = None,
        sides: Mapping[str, str] | None = None,
        untrained: Sequence[str] = (),
        *,
        order: int | None = None,
        failing: Callable[[Request], bool | Exception | None] | None = None,
        **options: Any,
    ) -> None:
        rewards, sides = rewards or {}, sides or {}
        for name in (*rewards, *sides, *untrained):
            check_known("scripted agent", name, policy.agents)
        agents = {
            name: AgentConfig(name, policy=name, reward=name if name in rewards else None, side=sides.get(name))
            for name in policy.agents
        }
        options["explored"] = frozenset(agents) - frozenset(untrained)
        super().__init__(TaskContext(workflow, tasks or _Anything(), agents, rewards, **options), task, task.id)
        self.policy, self._seed, self.delay, self.order, self.failing = policy, seed, delay, order, failing
        self.asked: list[tuple[int, Act, Candidate]] = []  # of every request, in order
        self.requests: list[Request] = []  # the same, with the agents that act
        self.given: list[Action] = []  # the returned actions, in order

    def seed(self, session: int) -> int:
        return self._seed + session

    def too_long(self, act: Act) -> str | None:
        limit = self.policy.context.get(act.role)
        length = sum(len(message_text(message)) for message in act.observation)
        if limit is None or length <= limit:
            return None
        return f"an observation of {length} characters exceeds the limit of agent '{act.agent}', {limit}"

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The scripted action, after its delay."""
        request = session, act.key, candidate, agent or act.agent
        self.asked.append((session, act, candidate))
        self.requests.append(request)
        delay = self.delay(act, session) if self.delay else 0
        delay += 0 if self.order is None else random.Random(repr((self.order, request))).randrange(40)
        for _ in range(delay):
            await asyncio.sleep(0)
        if self.failing is not None and (error := self.failing(request)):
            text = "a check makes this request fail: use `ask` for policy requests, in an `attempt`"
            raise error if isinstance(error, Exception) else ConnectionError(text)
        action = self.policy.act(act, session, candidate, agent)
        self.given.append(action)
        return action
