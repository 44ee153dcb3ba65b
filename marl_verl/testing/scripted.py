"""A team without models: scripted policies, and a check that a workflow can be replayed."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_verl.episode import Act, Action, ActRecord, Journal, ReplayMismatch, Run, Workflow, replay
from marl_verl.episode.codec import decode_journal, encode_journal
from marl_verl.episode.journal import Record
from marl_verl.episode.turn import changed
from marl_verl.errors import MarlError, unknown
from marl_verl.sampling import Candidate, drive
from marl_verl.sampling.context import BaseSamplingContext, RoleReward, TaskContext
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import AgentConfig
from marl_verl.testing.given import instance, must

Reply = str | Sequence[str] | Callable[..., str]
"""An agent's text: a constant; one per turn (the last one is repeated); or a function of the act, or of (act, session,
candidate) if attempts shall differ."""


def shown(act: Act) -> str:
    """The content of the last message of the observation."""
    return act.observation[-1]["content"]


def scripted_action(act: Act, text: str) -> Action:
    """An action with synthetic tokens: one id per byte of the text, log-probability -1."""
    ids = list(text.encode())
    seen = "\n".join(message["content"] for message in act.observation)
    return Action(text, list(seen.encode()), ids, [-1.0] * len(ids), stop_reason="stop", version=0)


@dataclass(frozen=True)
class ScriptedPolicy:
    """Fake policies with scripted replies.

    Attributes:
        replies: agent -> its reply, for every agent of the team.
    """

    replies: Mapping[str, Reply]

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents with scripted replies."""
        return tuple(self.replies)

    def act(self, act: Act, session: int = 0, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The scripted action of `agent` (default: `act.agent`).

        Raises:
            MarlError: the agent has no script, or its script does not return a text.
        """
        who = agent or act.agent
        if who not in self.replies:
            raise unknown("scripted agent", who, self.replies)
        reply = self.replies[who]
        if callable(reply):
            alone = len(inspect.signature(reply).parameters) == 1
            text = reply(act) if alone else reply(act, session, candidate)
        else:
            text = reply if isinstance(reply, str) else reply[min(act.turn, len(reply) - 1)]
        if not isinstance(text, str):
            raise MarlError(f"the script of agent '{who}' must return a text, got {text!r:.60} for {act}")
        return scripted_action(act, text)


class _Anything(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return 1.0


def check_scene(workflow: Workflow, task: Task, policy: ScriptedPolicy, tasks: TaskSet | None = None) -> None:
    instance(workflow, Workflow, "MyWorkflow(), of a class MyWorkflow(Workflow)")
    instance(task, Task, 'Task("id", "prompt", {...})')
    instance(policy, ScriptedPolicy, 'ScriptedPolicy({"agent": "what it says"})')
    if tasks is not None:
        instance(tasks, TaskSet, "MyTasks(), of a class MyTasks(TaskSet)")


class ScriptedContext(BaseSamplingContext):
    """`SamplingContext` without a model, for testing samplers and credits.

    Args:
        policy: scripted replies of the agents.
        tasks: scores the answers; without it every answer scores 1.
        seed: session g runs with seed + g.
        delay: (act, session) -> event loop iterations before the action arrives, for deterministic arrival orders.
        rewards: agent -> its role reward.
        options: of the `TaskContext`: mix, limits.

    Attributes:
        asked: (session, act, candidate) of every request, in order.
        given: the returned actions, in order.

    Raises:
        MarlError: workflow, task, policy or tasks is of the wrong type.
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
        **options: Any,
    ) -> None:
        check_scene(workflow, task, policy, tasks)
        rewards = rewards or {}
        for who, reward in rewards.items():
            if who not in policy.agents:
                raise unknown("agent in `rewards`", who, policy.agents)
            if not callable(reward):
                raise MarlError(f"the role reward of agent '{who}' must be a function, got {reward!r:.60}")
        for name in options:
            if name not in ("mix", "limits"):
                raise unknown("option", name, ("mix", "limits"))
        agents = {who: AgentConfig(who, policy=who, reward=who if who in rewards else None) for who in policy.agents}
        super().__init__(TaskContext(workflow, tasks or _Anything(), agents, rewards, **options), task, task.id)
        self.policy, self._seed, self.delay = policy, seed, delay
        self.asked: list[tuple[int, Act, Candidate]] = []
        self.given: list[Action] = []

    def seed(self, session: int) -> int:
        return self._seed + session

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The scripted action, after its delay."""
        self.asked.append((session, act, candidate))
        for _ in range(self.delay(act, session) if self.delay else 0):
            await asyncio.sleep(0)
        action = self.policy.act(act, session, candidate, agent)
        self.given.append(action)
        return action


def check_workflow(
    workflow: Workflow,
    task: Task,
    policy: ScriptedPolicy,
    seed: int = 0,
    orders: int = 4,
    may_not_act: Sequence[str] = (),
) -> Run:
    """Assert that a workflow can be replayed and that every agent acts; call it from a test (it starts an event loop).

    It runs the workflow with the scripted policy, and again: from the whole journal, strictly and without requests;
    from the journal after a JSON round trip; from every prefix of the journal; and `orders` times with other arrival
    orders of concurrent actions. Each run must have the same journal (so calls must be deterministic, too), proposals,
    invalid marks and answer.

    Args:
        may_not_act: agents of the policy that need not act on this task with these replies.

    Returns:
        The first run, finished.

    Raises:
        AssertionError: agents of the policy never acted, or the answer (or a proposal) is an action, not its text.
        ReplayMismatch: an effect differs between runs.
        WorkflowError: the workflow failed.
        MarlError: workflow, task or policy is of the wrong type, or `may_not_act` names an agent without a script.
    """
    check_scene(workflow, task, policy)
    for agent in may_not_act:
        if agent not in policy.agents:
            raise unknown("scripted agent", agent, policy.agents)
    first, acted = asyncio.run(replayable(workflow, task, policy, seed, orders))
    name = f"workflow '{type(workflow).__name__}' on task '{task.id}'"
    never = [agent for agent in policy.agents if agent not in acted and agent not in may_not_act]
    advice = f"change the replies or the task, or pass may_not_act={never}"
    must(not never, f"{name} never lets {', '.join(never)} act: {advice}")
    answers, proposes = _has_action(first.answer), _has_action(first.proposals)
    must(not answers, f"{name} answers with an Action, which cannot be scored: return action.text")
    must(not proposes, f"{name} proposes an Action, which cannot be scored: team.propose(action.text)")
    return first


async def replayable(
    workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int, orders: int
) -> tuple[Run, set[str]]:
    """Check that a workflow is replayable; return (its first run, the agents that acted in any run)."""
    acted: set[str] = set()

    async def run(what: str, journal: Journal | None = None, strict: bool = False, shuffle: int | None = None) -> Run:
        context = ScriptedContext(workflow, task, policy, delay=shuffled(shuffle))
        async with Run(workflow, task, policy.agents, journal, seed, strict=strict) as again:
            await drive(again, lambda act: context.act(act, 0))
        acted.update(act.agent for _, act, _ in context.asked)
        if what:
            _same(first, again, what)
        return again

    first = await run("")
    whole = first.journal
    _same(first, await replay(workflow, task, policy.agents, whole), "replayed")
    await run("restarted from its journal", whole, strict=True)
    stored = decode_journal(json.loads(json.dumps(encode_journal(whole))))
    await run("restarted from its journal as JSON", stored, strict=True)
    for count in range(len(whole)):
        await run(f"restarted from {count} records", whole.prefix(count))
    for shuffle in range(orders):
        await run("with actions arriving in another order", shuffle=shuffle)
    return first, acted


def _has_action(answer: Any) -> bool:
    """Whether an answer is an Action, or a list or dict that contains one."""
    if isinstance(answer, Mapping):
        return _has_action(list(answer.values()))
    return isinstance(answer, Action) or (isinstance(answer, list | tuple) and any(map(_has_action, answer)))


def shuffled(seed: int | None) -> Callable[[Act, int], int] | None:
    """Delays of 0 to 40 loop iterations, enough to swap the arrival of any two acts of a small workflow."""
    return None if seed is None else lambda act, _: random.Random(repr((seed, act.key))).randrange(40)


def _same(first: Run, again: Run, what: str) -> None:
    """Raise ReplayMismatch with the first effect that differs."""
    name = f"workflow '{type(first.workflow).__name__}' on task '{first.task.id}', {what}"
    different = [(old, new) for old, new in zip(first.journal, again.journal, strict=False) if old != new]
    if different:
        raise ReplayMismatch(f"{name}: {_difference(*different[0])}")
    old, new = tuple(first.journal), tuple(again.journal)
    if len(new) < len(old):
        raise ReplayMismatch(f"{name}: it does not reach {_effect(old[len(new)])}, which the first run reached")
    if len(new) > len(old):
        raise ReplayMismatch(f"{name}: it reaches {_effect(new[len(old)])}, which the first run did not reach")
    ends = {"proposals": "proposals", "invalid": "invalid marks", "answer": "answer"}
    for attribute, shown_as in ends.items():
        one, two = getattr(first, attribute), getattr(again, attribute)
        if one != two:
            raise ReplayMismatch(f"{name}: different {shown_as}: first {one!r:.200}, now {two!r:.200}")


def _effect(record: Record) -> str:
    return str(record.act) if isinstance(record, ActRecord) else str(record)


def _difference(old: Record, new: Record) -> str:
    if isinstance(old, ActRecord) and isinstance(new, ActRecord) and old.act.key == new.act.key:
        if old.act.observation != new.act.observation:
            return f"{old.act} is shown another observation: {changed(old.act, new.act)}"
        return f"{old.act} has another index or action: first {old}, now {new}"
    return f"different effect: first {old}, now {new}"
