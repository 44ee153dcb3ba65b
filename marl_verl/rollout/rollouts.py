"""What a sampler drives for one task: runs of the workflow, acts sent to policies, finished runs scored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_verl.advantage.returns import Outcome
from marl_verl.episode import Act, Action, Episode, Journal, Message, Run, Turn, Workflow
from marl_verl.rollout.client import PolicyClient, request_seed
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import Team

RoleReward = Callable[[Task, Turn, Episode], float]


@dataclass(frozen=True)
class TeamParts:
    """A team brought to life in a rollout worker: everything its config names, loaded."""

    team: Team
    workflow: Workflow
    tasks: TaskSet
    rewards: Mapping[str, RoleReward]
    clients: Mapping[str, PolicyClient]
    seed: int
    act_seconds: float
    outcome: Outcome = "every turn"


class TaskRollouts:
    """The `Rollouts` of one task.

    Args:
        parts: the team.
        task: the problem.
        uid: of this task instance.
        step: training step, enters the seeds.
        sessions: episodes to sample.
        held_out: sampling parameters of a validation; None in training, where policies and agents have their own.
    """

    def __init__(
        self, parts: TeamParts, task: Task, uid: str, step: int, sessions: int, held_out: Mapping[str, Any] | None
    ) -> None:
        self.sessions = sessions
        self._parts, self._task, self._uid, self._step, self._held_out = parts, task, uid, step, held_out
        self._begun: dict[int, float] = {}

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """A run of the workflow on the task; with a journal it continues where that ends."""
        self._begun.setdefault(session, time.monotonic())
        seed = request_seed(self._parts.seed, self._step, self._task.id, session)
        return Run(self._parts.workflow, self._task, list(self._parts.team.agents), journal, seed=seed)

    async def act(self, act: Act, session: int, candidate: int = 0) -> Action:
        """Ask the agent's policy, with a seed from (run seed, step, task, session, agent, slot, candidate)."""
        agent = self._parts.team.agents[act.agent]
        client = self._parts.clients[agent.policy]
        messages: list[Message] = list(act.observation)
        if agent.instructions:
            messages.insert(0, {"role": "system", "content": agent.instructions})
        sampling = dict(client.sampling if self._held_out is None else self._held_out)
        if self._held_out is None:
            own = {name: getattr(agent.sampling, name) for name in ("temperature", "top_p", "top_k")}
            sampling.update({name: value for name, value in own.items() if value is not None})
        sampling["max_tokens"] = agent.sampling.max_tokens
        sampling["seed"] = request_seed(
            self._parts.seed, self._step, self._task.id, session, act.agent, act.slot, candidate
        )
        prompt_ids = client.encode(messages)
        async with asyncio.timeout(self._parts.act_seconds):
            return await client.generate(prompt_ids, sampling, request_id=f"{self._uid}-{session}")

    async def finish(self, run: Run, session: int) -> Episode:
        """Score a finished run: `team` on every turn, or where the algorithm's returns need it; `role` on the turns of
        agents that have a role reward."""
        agents = self._parts.team.agents
        turns = [Turn.of(act, action, self._uid, session, agents[act.agent].policy) for act, action in run.turns]
        score = float(self._parts.tasks.score(self._task, run.answer))
        episode = Episode(
            uid=self._uid,
            session=session,
            task=self._task,
            turns=turns,
            answer=run.answer,
            success=bool(self._parts.tasks.success(self._task, run.answer)),
            journal=run.journal,
            seconds=time.monotonic() - self._begun[session],
        )
        for turn, counts in zip(turns, bearers(turns, self._parts.outcome), strict=True):
            turn.invalid = run.invalid.get((turn.agent, turn.slot))
            turn.rewards["team"] = score if counts else 0.0
            name = agents[turn.agent].reward
            if name is not None:
                turn.rewards["role"] = float(self._parts.rewards[name](self._task, turn, episode))
        return episode


def bearers(turns: list[Turn], outcome: Outcome) -> list[bool]:
    """Which turns of an episode bear its outcome: where returns add rewards up over turns, it must count once."""
    if outcome == "every turn":
        return [True] * len(turns)
    if outcome == "last turn":
        last = max((turn.turn for turn in turns), default=0)
        return [turn.turn == last for turn in turns]
    last_of = {turn.agent: turn.index for turn in turns}  # turns are in index order
    return [turn.index == last_of[turn.agent] for turn in turns]
