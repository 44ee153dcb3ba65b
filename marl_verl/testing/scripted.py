"""A team without models: scripted policies, and a check that a workflow can be replayed.

def test_my_workflow() -> None:
    replies = {"solver": ["4", "5"], "verifier": lambda act: "yes" if "5" in shown(act) else "no"}
    run = check_workflow(SolverVerifier(), task, ScriptedPolicy(replies))
    assert run.answer == "5"
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_verl.episode import Act, Action, ActRecord, Journal, ReplayMismatch, Run, Workflow, replay
from marl_verl.episode.journal import Record
from marl_verl.episode.turn import changed
from marl_verl.errors import unknown
from marl_verl.sampling import Candidate, drive
from marl_verl.sampling.rollouts import RoleReward, Scene, SceneRollouts
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import Agent

Reply = str | Sequence[str] | Callable[..., str]
"""An agent's text: always the same; one for each turn (the last one again after them); or a function of the act, or of
(act, session, candidate) where attempts are to differ."""


def shown(act: Act) -> str:
    """What the agent sees last: the content of the last message."""
    return act.observation[-1]["content"]


def scripted_action(act: Act, text: str) -> Action:
    """An action with stand-in tokens: one id for each byte of the text, log-probability -1."""
    ids = list(text.encode())
    seen = "\n".join(message["content"] for message in act.observation)
    return Action(text, list(seen.encode()), ids, [-1.0] * len(ids), stop_reason="stop", version=0)


@dataclass(frozen=True)
class ScriptedPolicy:
    """Fake policies: agent -> what it says.

    Attributes:
        replies: for every agent of the team.
    """

    replies: Mapping[str, Reply]

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents it speaks for."""
        return tuple(self.replies)

    def act(self, act: Act, session: int = 0, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """The scripted action of `agent`, who is `act.agent` if not given. MarlError for an agent without a script."""
        who = agent or act.agent
        if who not in self.replies:
            raise unknown("scripted agent", who, self.replies)
        reply = self.replies[who]
        if isinstance(reply, str):
            return scripted_action(act, reply)
        if callable(reply):
            alone = len(inspect.signature(reply).parameters) == 1
            return scripted_action(act, reply(act) if alone else reply(act, session, candidate))
        return scripted_action(act, reply[min(act.turn, len(reply) - 1)])


class _Anything(TaskSet):
    """Scores every answer 1."""

    def score(self, task: Task, answer: Any) -> float:
        return 1.0


class ScriptedRollouts(SceneRollouts):
    """`Rollouts` without a model, for testing samplers and credit schemes.

    Args:
        policy: what the agents say.
        sessions: how many attempts are wanted.
        tasks: scores the answers; without it every answer scores 1.
        seed: session g runs with seed + g.
        delay: loop iterations before an action comes, for (act, session): arrival orders without a clock.
        rewards: agent -> its role reward.
        options: of the `Scene`: outcome, mix, limits.

    Attributes:
        asked: (session, act, candidate) of every request, in order.
        given: the actions that were given, in order.
    """

    def __init__(
        self,
        workflow: Workflow,
        task: Task,
        policy: ScriptedPolicy,
        sessions: int = 1,
        tasks: TaskSet | None = None,
        seed: int = 0,
        delay: Callable[[Act, int], int] | None = None,
        rewards: Mapping[str, RoleReward] | None = None,
        **options: Any,
    ) -> None:
        rewards = rewards or {}
        agents = {name: Agent(name, policy=name, reward=name if name in rewards else None) for name in policy.agents}
        scene = Scene(workflow, tasks or _Anything(), agents, rewards, **options)
        super().__init__(scene, task, task.id, sessions)
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


def check_workflow(workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int = 0, orders: int = 4) -> Run:
    """Assert that a workflow can be replayed; call it from a test (it starts an event loop).

    It runs the workflow with the scripted policy, and then again: from its whole journal, strictly, asking for nothing;
    from the journal read back from JSON; from every prefix of it; and `orders` times with the actions of concurrent
    acts arriving in other orders. Each must give the same journal and the same answer (so what it calls must, too).

    Returns:
        The first run, finished.

    Raises:
        ReplayMismatch: which effect differs, and how.
        WorkflowError: the workflow failed.
    """
    return asyncio.run(_check(workflow, task, policy, seed, orders))


async def _check(workflow: Workflow, task: Task, policy: ScriptedPolicy, seed: int, orders: int) -> Run:
    async def run(what: str, journal: Journal | None = None, strict: bool = False, shuffle: int | None = None) -> Run:
        rollouts = ScriptedRollouts(workflow, task, policy, delay=_shuffled(shuffle))
        again = Run(workflow, task, policy.agents, journal, seed, strict=strict)
        async with again:
            await drive(again, lambda act: rollouts.act(act, 0))
        if what:
            _same(first, again, what)
        return again

    first = await run("")
    whole = first.journal
    _same(first, await replay(workflow, task, policy.agents, whole), "replayed")
    await run("restarted from its journal", whole, strict=True)
    await run("restarted from its journal as JSON", Journal.from_json(whole.to_json()), strict=True)
    for count in range(len(whole)):
        await run(f"restarted from {count} records", whole.prefix(count))
    for shuffle in range(orders):
        await run("with actions arriving in another order", shuffle=shuffle)
    return first


def _shuffled(seed: int | None) -> Callable[[Act, int], int] | None:
    """Delays of 0 to 40 loop iterations, enough to turn any two acts of a small workflow around."""
    return None if seed is None else lambda act, _: random.Random(repr((seed, act.key))).randrange(40)


def _same(first: Run, again: Run, what: str) -> None:
    """Raise ReplayMismatch, naming the first effect that differs."""
    name = type(first.workflow).__name__
    different = [(old, new) for old, new in zip(first.journal, again.journal, strict=False) if old != new]
    if different:
        raise ReplayMismatch(f"workflow '{name}', {what}: {_difference(*different[0])}")
    if len(first.journal) != len(again.journal):
        counts = f"{len(again.journal)} effects instead of {len(first.journal)}"
        raise ReplayMismatch(f"workflow '{name}', {what}: {counts}")
    if first.answer != again.answer:
        raise ReplayMismatch(f"workflow '{name}', {what}: answers {again.answer!r}, not {first.answer!r}")


def _difference(old: Record, new: Record) -> str:
    if isinstance(old, ActRecord) and isinstance(new, ActRecord) and old.act.key == new.act.key:
        if old.act.observation != new.act.observation:
            return f"{old.act} is shown another observation: {changed(old.act, new.act)}"
        return f"{old.act} is at another place, or has another action: first {old}, now {new}"
    return f"another effect: first {old}, now {new}"
