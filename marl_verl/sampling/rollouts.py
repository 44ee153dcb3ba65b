"""The means of a sampler, but for asking policies: runs of a workflow on a task, turns, scores and rewards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_verl.advantage.rows import RowTable
from marl_verl.episode import (
    Act,
    Action,
    Episode,
    Journal,
    Limits,
    Run,
    Turn,
    Workflow,
)
from marl_verl.episode.row import row
from marl_verl.rewards.mix import RewardMix
from marl_verl.sampling import scoring
from marl_verl.sampling.base import Candidate
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import AgentConfig

RoleReward = Callable[[Task, Turn, Episode], Any]
"""(task, turn, episode) -> a number; may be async."""


@dataclass(frozen=True)
class Scene:
    """A team on its kind of task: all that scoring and rewarding need to know.

    Attributes:
        rewards: role rewards by their names.
        mix: how the algorithm makes one reward of the components; None adds them up.
        limits: what one episode may take.
    """

    workflow: Workflow
    tasks: TaskSet
    agents: Mapping[str, AgentConfig]
    rewards: Mapping[str, RoleReward] = field(default_factory=dict)
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
        for turn in turns:
            turn.team_reward = episode.score
        await self._reward_turns(turns, episode, run)
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
        """Component `team` is the state's score; for `role` and `tool` see `_reward_turns`."""
        turns = list(turns)
        for turn in turns:
            turn.rewards["team"] = episode.score
        await self._reward_turns(turns, episode, run)

    async def _reward_turns(self, turns: Iterable[Turn], episode: Episode, run: Run) -> None:
        """`role` where the agent has a role reward; `tool` where the algorithm asks for it and the agent made calls:
        the share of its calls in the episode that did not raise."""
        tool = self.scene.mix is not None and "tool" in self.scene.mix.asks()
        for turn in turns:
            turn.invalid = run.invalid.get(turn.key)
            name = self.scene.agents[turn.agent].reward
            if name is not None:
                what = f"role reward '{name}' of agent '{turn.agent}'"
                turn.rewards["role"] = await scoring.number(
                    self.scene.rewards[name], (self.task, turn, episode), what, self.limits.call_seconds
                )
            calls = [call for call in run.journal.calls() if call.agent == turn.agent] if tool else []
            if calls:
                turn.rewards["tool"] = sum(call.raised is None for call in calls) / len(calls)

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The reward of each turn, mixed as the algorithm does."""
        if self.scene.mix is None:
            return [sum(turn.components.values()) for turn in turns]
        own = [{"index": i, "rewards": turn.components, "team_reward": None} for i, turn in enumerate(turns)]
        rows = [{**row(turn), **fields} for turn, fields in zip(turns, own, strict=True)]
        table = RowTable.from_rows(rows, declared=self.scene.mix.components(self.scene.agents))
        return [float(value) for value in self.scene.mix.compute(table)]

    async def public_score(self, answer: Any) -> float:
        """The part of an answer's quality that the team may know."""
        arguments = self.task, answer
        return await scoring.number(
            self.scene.tasks.public_score, arguments, "the public score", self.limits.call_seconds
        )
