"""Synthetic rows: those that a run's own sampler makes of synthetic actions and scores, without a model.

They show before a run starts whether an algorithm fits a team: they have its nodes, sessions, turns and components.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from marl_verl.advantage import RowTable
from marl_verl.algorithms import Algorithm
from marl_verl.credit.replay import ReplayCredit
from marl_verl.episode import Act, Action, Episode, Team, Turn, Workflow
from marl_verl.episode.row import row
from marl_verl.errors import MarlError
from marl_verl.sampling import Candidate, Sample, Sampler
from marl_verl.sampling.rollouts import Scene, SceneRollouts
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import TeamConfig

MOST_MOVES, SECONDS = 3, 30.0


@dataclass(frozen=True)
class SyntheticTeam:
    """What makes synthetic rows; `moves` are the workflow's first (agents that act at once), as rehearsed."""

    sampler: Sampler
    algorithm: Algorithm
    team: TeamConfig
    moves: tuple[tuple[str, ...], ...] = ()

    def rows(self, number: int, attempts: int) -> list[dict[str, Any]]:
        """The rows of a task from `attempts` sessions; scores differ from those of tasks with another number.

        MarlError where the sampler fails.
        """
        name, agents = self.algorithm.sampler, self.team.agents
        rewards = {agent.reward: _role_reward for agent in agents.values() if agent.reward}
        acting = {agent for move in self.moves[:MOST_MOVES] for agent in move}
        moves = (*self.moves[:MOST_MOVES], *((agent,) for agent in agents if agent not in acting))
        scene = Scene(_SyntheticWorkflow(moves), _SyntheticTasks(), agents, rewards, self.algorithm.rewards)
        task = Task(f"synthetic-{number}", "", {"number": number})
        sessions = _SyntheticRollouts(scene, task, task.id, attempts)
        try:
            sample = asyncio.run(asyncio.wait_for(self.sampler.sample(sessions), SECONDS))
        except TimeoutError as error:
            raise MarlError(f"sampler '{name}' took longer than {SECONDS:.0f} s for one synthetic task.") from error
        if sample.failures or not sample.turns:
            why = sample.failures[0].detail if sample.failures else "it has no turn"
            raise MarlError(f"sampler '{name}' fails on a synthetic task of the team: {why}")
        self._credit(sample)
        value = {"value": 0.0} if self.algorithm.advantage.wants_critic() else {}
        return [{**row(turn), **value} for turn in sample.turns]

    def table(self, rows: Sequence[dict[str, Any]]) -> RowTable:
        """Rows as the trainer gives them to the algorithm."""
        return RowTable.from_rows(rows, self.algorithm.components(self.team.agents))

    def _credit(self, sample: Sample) -> None:
        """Replays are not made: a credit may know its own workflow only."""
        credit = self.algorithm.credit
        if isinstance(credit, ReplayCredit):
            players = credit.players(list(self.team.agents))
            for turn in sample.turns:
                if turn.agent in players:
                    turn.rewards[credit.component] = (1 + turn.session) / (1 + turn.index)


class _SyntheticWorkflow(Workflow):
    """Some moves, after each of which the team proposes an answer."""

    moves: tuple[tuple[str, ...], ...]

    async def run(self, task: Task, team: Team) -> str:
        said = ""
        for move in self.moves:
            for agent in move:  # the tool component of an agent needs a call
                await team[agent].call(len, agent)
            seen = {agent: f"{task.id}: {agent} acts" for agent in move}
            actions = await team.act(seen) if len(seen) > 1 else {move[0]: await team[move[0]].act(seen[move[0]])}
            for action in actions.values():
                said += action.text
                if _number(action.text, 2):
                    team.invalid(action, "synthetic")
            team.propose(said)
        return said


class _SyntheticTasks(TaskSet):
    """Scores that differ between answers, and still more between tasks."""

    def score(self, task: Task, answer: Any) -> float:
        return _number(answer, 97) / 8 + 20.0 * task.data["number"]

    def public_score(self, task: Task, answer: Any) -> float:
        return _number(answer, 53) / 8


class _SyntheticRollouts(SceneRollouts):
    """`Rollouts` whose actions differ by agent, slot, session and candidate."""

    def seed(self, session: int) -> int:
        return session

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        text = f"({agent or act.agent} {act.slot} {session} {candidate})"
        return Action(text, stop_reason="stop", version=0, tokens=1 + _number(text, 16))

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The sum of the components: what is wrong with the mix shows in the advantage."""
        return [sum(turn.components.values()) for turn in turns]


def _role_reward(task: Task, turn: Turn, episode: Episode) -> float:
    """Another one for each agent of a joint move, also for one without a role reward."""
    return 1.0 + (turn.session + turn.index) % 2


def _number(text: str, below: int) -> int:
    return crc32(text.encode()) % below
