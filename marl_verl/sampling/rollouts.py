"""The means of a sampler, but for asking policies: runs of a workflow on a task, turns, scores and rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from marl_verl.episode import (
    Act,
    Action,
    CallRecord,
    Episode,
    Journal,
    Limits,
    Run,
    Turn,
    Workflow,
)
from marl_verl.sampling import scoring
from marl_verl.sampling.base import Candidate
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import Agent

if TYPE_CHECKING:
    from marl_verl.advantage.mix import RewardMix
    from marl_verl.advantage.returns import Outcome

RoleReward = Callable[[Task, Turn, Episode], Any]
"""(task, turn, episode) -> a number; may be async."""


@dataclass(frozen=True)
class Scene:
    """A team on its kind of task: all that scoring and rewarding need to know.

    Attributes:
        rewards: role rewards by their names.
        outcome: on which turns of a finished episode component `team` stands.
        mix: how the algorithm makes one reward of the components; None adds them up.
        limits: what one episode may take.
    """

    workflow: Workflow
    tasks: TaskSet
    agents: Mapping[str, Agent]
    rewards: Mapping[str, RoleReward] = field(default_factory=dict)
    outcome: Outcome = "every turn"
    mix: RewardMix | None = None
    limits: Limits = Limits()


class SceneRollouts:
    """`Rollouts` without `act`.

    Args:
        uid: of this task instance.
        sessions: attempts at the task.
    """

    def __init__(self, scene: Scene, task: Task, uid: str, sessions: int) -> None:
        self.scene, self.task, self.uid, self.sessions = scene, task, uid, sessions
        self.agents, self.limits = tuple(scene.agents), scene.limits
        self._begun: dict[int, float] = {}

    @property
    def label(self) -> str:
        """Workflow and task."""
        return f"workflow '{type(self.scene.workflow).__name__}' on task '{self.task.id}'"

    def seed(self, session: int) -> int:
        """The seed of a session's runs."""
        raise NotImplementedError

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Ask the agent's policy."""
        raise NotImplementedError

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """A run of the workflow on the task; with a journal it continues where that ends."""
        self._begun.setdefault(session, time.monotonic())
        return Run(
            self.scene.workflow, self.task, self.agents, journal, seed=self.seed(session), limits=self.scene.limits
        )

    def turn(
        self,
        act: Act,
        action: Action,
        session: int,
        *,
        agent: str | None = None,
        index: int | None = None,
        node: str | None = None,
        parent: str | None = None,
    ) -> Turn:
        """The turn that an act and its action make, with the policy behind it."""
        policy = self.scene.agents[agent or act.agent].policy
        return Turn.of(act, action, self.uid, session, policy, node, parent, agent, index)

    async def finish(self, run: Run, session: int) -> Episode:
        """Score a finished run, reward its turns, and make it an episode."""
        turns = [self.turn(act, action, session) for act, action in run.turns]
        episode = await self.state(run, session, turns, run.answer)
        await self.reward(turns, episode, run)
        for turn, counts in zip(turns, bearers(turns, self.scene.outcome), strict=True):
            if not counts:
                turn.rewards["team"] = 0.0
        return episode

    async def state(self, run: Run, session: int, turns: Sequence[Turn], answer: Any) -> Episode:
        """What a run has come to, as an episode of these turns, with `answer` scored (None scores 0)."""
        score, success = 0.0, False
        if answer is not None:
            score, success = await scoring.judged(self.scene.tasks, self.task, answer, self.limits.call_seconds)
        return Episode(
            uid=self.uid,
            session=session,
            task=self.task,
            turns=list(turns),
            answer=answer,
            success=success,
            journal=run.journal,
            seconds=time.monotonic() - self._begun[session],
            score=score,
            finished=run.finished,
        )

    async def score(self, answer: Any) -> float:
        """The task's score of an answer."""
        return await scoring.score(self.scene.tasks, self.task, answer, self.limits.call_seconds)

    async def reward(self, turns: Iterable[Turn], episode: Episode, run: Run) -> None:
        """`team` on every turn; `role` where the agent has a role reward; `tool` where the algorithm asks for it and
        the agent made calls: the share of its calls in the episode that did not raise."""
        tool = "tool" in self._asks()
        for turn in turns:
            turn.invalid = run.invalid.get(turn.key)
            turn.rewards["team"] = episode.score
            name = self.scene.agents[turn.agent].reward
            if name is not None:
                what = f"role reward '{name}' of agent '{turn.agent}'"
                turn.rewards["role"] = await scoring.number(
                    self.scene.rewards[name], (self.task, turn, episode), what, self.limits.call_seconds
                )
            calls = _calls_of(turn.agent, run.journal) if tool else []
            if calls:
                turn.rewards["tool"] = sum(call.raised is None for call in calls) / len(calls)

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The reward of each turn, mixed as the algorithm does."""
        if self.scene.mix is None:
            return [sum(turn.rewards.values()) for turn in turns]
        from marl_verl.advantage.rows import RowTable
        from marl_verl.episode.row import row

        rows = [row(turn) for turn in turns]
        # a mix refuses a component that no row has: these are one agent's turns, and others may have a role reward
        role = ("role",) if any(agent.reward for agent in self.scene.agents.values()) else ()
        components = ("team", *role, *self._asks())
        rest = {"agent": "(the rest of the team)", "rewards": dict.fromkeys(components, 0.0), "index": len(rows)}
        rows = [{**each, "index": index} for index, each in enumerate(rows)]
        mixed = self.scene.mix.compute(RowTable.from_rows([*rows, {**rows[0], **rest}]))
        return [float(value) for value in mixed[: len(turns)]]

    async def public_score(self, answer: Any) -> float:
        """The part of an answer's quality that the team may know."""
        arguments = self.task, answer
        return await scoring.number(
            self.scene.tasks.public_score, arguments, "the public score", self.limits.call_seconds
        )

    def _asks(self) -> tuple[str, ...]:
        """Components that are made for the algorithm's mix only."""
        return () if self.scene.mix is None else self.scene.mix.asks()


def _calls_of(agent: str, journal: Journal) -> list[CallRecord]:
    return [call for call in journal.calls() if call.agent == agent]


def bearers(turns: list[Turn], outcome: Outcome) -> list[bool]:
    """Which turns of an episode bear its outcome: where returns add rewards up over turns, it must count once."""
    if outcome == "every turn":
        return [True] * len(turns)
    if outcome == "last turn":
        last = max((turn.turn for turn in turns), default=0)
        return [turn.turn == last for turn in turns]
    last_of = {turn.agent: turn.index for turn in turns}  # turns are in index order
    return [turn.index == last_of[turn.agent] for turn in turns]
