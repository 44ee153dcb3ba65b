"""The context of a sampler: runs, turns, scores and rewards; and the scores of a user's functions as numbers."""

import math
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.algo.sampling.scoring import scored
from marl_verl.episode import Act, Action, Episode, Journal, Run, Turn, Workflow
from marl_verl.episode.communication import amounts, read_lengths
from marl_verl.episode.errors import Limits
from marl_verl.errors import MarlError, nearest, noted, shown
from marl_verl.tasks.base import DetailedScore, Task, TaskSet, is_default, name_of, winner
from marl_verl.team import AgentConfig, acting, check_sides, sides_of
from marl_verl.threads import perform

Candidate = int | str
"""Distinguishes several actions for one act; part of the request's seed. A name is independent of arrival order."""
GREEDY = "greedy"
"""A candidate sampled at temperature 0; and the column of rows with the reward of a task's greedy episode."""
Score = float | dict[str, float]  # the team's, or side -> its score
RoleReward = Callable[[Task, Turn, Episode], Any]  # a number; may be async


@dataclass(frozen=True)
class TaskContext:
    """Workflow, task set, team and rewards of a run."""

    workflow: Workflow
    tasks: TaskSet
    agents: Mapping[str, AgentConfig]
    rewards: Mapping[str, RoleReward] = field(default_factory=dict)
    mix: RewardMix = Mix()
    limits: Limits = Limits()  # of one episode
    explored: frozenset[str] | None = None  # policies whose agents are explored in trees; None: all
    parts: tuple[str, ...] = ()  # of the score: reward components of every turn, 0 without an answer


class SamplingContext:
    """What the rollout worker passes to a sampler for one task instance, `uid`.

    An independent sampler needs only `start`, `act` and `finish`; one that branches creates its own turns (`turn`),
    scores states (`state`), rewards turns (`reward`) and compares them (`value`). Subclasses have `act` and `seed`.

    `explored` are the agents of which a tree samples alternatives; acts of others are parts of a transition. Of the
    `limits` of an episode, runs enforce acts, tokens and calls; `act` act_seconds; `attempt` the others.
    """

    begun: Journal | None = None  # with which the task's runs begin
    alone: AbstractAsyncContextManager[object] = nullcontext()  # entered for each attempt: a lock if one at a time

    def __init__(self, task_context: TaskContext, task: Task, uid: str) -> None:
        self.task_context, self.task, self.uid = task_context, task, uid
        agents, policies, self.limits = task_context.agents, task_context.explored, task_context.limits
        self.agents = tuple(agents)
        self.explored = frozenset(name for name in agents if policies is None or agents[name].policy in policies)
        self.label = f"workflow '{type(task_context.workflow).__name__}' on task '{task.id}'"
        self._begun: dict[int, float] = {}

    @abstractmethod
    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        """Request an action of the agent's policy. The request's seed depends on (agent, slot, session, candidate).
        `agent`: the agent that acts, if not `act.agent`, with its own policy and instructions."""

    @abstractmethod
    def seed(self, session: int) -> int:
        """The seed of a session's runs."""

    def start(self, session: int, journal: Journal | None = None) -> Run:
        """Create a run of the workflow on the task, from the start or a journal. The sampler must close it."""
        self._begun.setdefault(session, time.monotonic())
        journal = self.begun if journal is None else journal
        begun = self.task_context.workflow, self.task, self.agents, journal, self.seed(session)
        return Run(*begun, limits=self.limits, too_long=self.too_long)

    def too_long(self, act: Act) -> str | None:
        """Why a request of a client is too long for the policy of its agent; None if it is not, or not known."""
        return None

    def turn(self, act: Act, action: Action, session: int, *, agent: str | None = None, **position: Any) -> Turn:
        """Create the turn of an act and its action, with the agent's policy; `position`: `index`, `node`, `parent`."""
        policy = acting(self.task_context.agents, act, agent).policy
        position = {name: value for name, value in position.items() if value is not None}
        return Turn(act, action, self.uid, session, policy, agent or act.agent, **position)

    async def finish(self, run: Run, session: int, agent: str | None = None) -> Episode:
        """Score a finished run, reward its turns, and return it as an episode. `agent` acted for explored agents."""
        by = dict.fromkeys(self.explored, agent)
        turns = [self.turn(act, action, session, agent=by.get(act.role)) for act, action in run.turns]
        episode = await self.state(run, session, turns, run.answer)
        names = self.task_context.parts
        parts = dict.fromkeys(names, 0.0) if run.answer is None else score_parts(episode.score, names)
        for turn in turns:
            turn.team_reward = self.outcome(turn, episode)
            turn.rewards |= parts
        await self._reward_turns(turns, episode, run)
        return episode

    async def state(self, run: Run, session: int, turns: Sequence[Turn], answer: Any) -> Episode:
        """The current state of a run as an episode of these turns, with `answer` scored (None scores 0)."""
        verdict: Score = 0.0
        success = False
        if answer is not None:
            verdict, success = await judged(self.task_context.tasks, self.task, answer, self.limits.call_seconds)
        score, outcomes = by_side(verdict, self.task_context.agents)
        taken = time.monotonic() - self._begun[session]
        played = self.uid, session, self.task, list(turns), answer, success, run.journal, taken, score
        return Episode(*played, finished=run.finished, outcomes=outcomes)

    def outcome(self, turn: Turn, episode: Episode) -> float:
        """The team reward of a turn's agent in an episode."""
        outcome, tasks = episode.outcome(self.task_context.agents[turn.role].side), self.task_context.tasks
        return outcome if episode.answer is None else tasks.scale * outcome + tasks.shift

    async def reward(self, turns: Iterable[Turn], episode: Episode, run: Run) -> None:
        """Reward turns of a tree, with the score of the state as component "team"."""
        turns = list(turns)
        for turn in turns:
            turn.rewards["team"] = self.outcome(turn, episode)
        await self._reward_turns(turns, episode, run)

    async def _reward_turns(self, turns: Sequence[Turn], episode: Episode, run: Run) -> None:
        """Set `invalid`, `role` if the agent has a role reward, and those of its `amounts` that the mix requires."""
        by_reward: dict[str, list[Turn]] = {}
        for turn in turns:
            turn.invalid = run.invalid.get(turn.key)
            if (name := self.task_context.agents[turn.role].reward) is not None:
                by_reward.setdefault(name, []).append(turn)
        for name, rewarded in by_reward.items():
            fn, calls = self.task_context.rewards[name], [(self.task, turn, episode) for turn in rewarded]
            with noted(f"role reward '{name}' of agent '{rewarded[0].agent}'"):
                values = await scored(fn, calls, self.limits.call_seconds)
            for turn, value in zip(rewarded, values, strict=True):
                turn.rewards["role"] = finite(value, f"role reward '{name}' of agent '{turn.agent}'", name_of(fn))
        if required := self.task_context.mix.required():
            lengths = read_lengths(episode) if "read" in required else [0.0] * len(episode.turns)
            agents = {agent: amounts(agent, episode, lengths) for agent in {turn.agent for turn in turns}}
            for turn in turns:
                turn.rewards |= {name: value for name, value in agents[turn.agent].items() if name in required}

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The reward of each turn, with the algorithm's reward mix."""
        rows = [replace(turn, index=i, rewards=turn.components, team_reward=None) for i, turn in enumerate(turns)]
        table = RowTable.of(rows, self.task_context.mix.components(self.task_context.agents))
        return [float(value) for value in self.task_context.mix.compute(table)]

    async def score(self, answer: Any) -> float:
        """The task's score of an answer."""
        return await self._score(self.task_context.tasks.score, answer, "the score")

    async def public_score(self, answer: Any) -> float:
        """The score of an answer without the solution: `TaskSet.public_score`."""
        return await self._score(self.task_context.tasks.public_score, answer, "the public score")

    async def _score(self, fn: Callable[..., Any], answer: Any, label: str) -> float:
        (value,) = await scored(fn, [(self.task, answer)], self.limits.call_seconds)
        return finite(value, label, name_of(fn))


def finite(returned: Any, label: str, name: Any) -> float:
    """A score as a number. MarlError, which begins with `label` and names the function, if it is none or not finite."""
    try:
        value = float(returned)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise MarlError(f"{label} must be a finite number, {name} returned {returned!r:.80}")
    return value


async def judged(tasks: TaskSet, task: Task, answer: Any, seconds: float | None = None) -> tuple[Score, bool]:
    """(score, success) of an answer. A task set that does not override `success` is called only once."""
    (score,), name = await scored(tasks.score, [(task, answer)], seconds), name_of(tasks.score)
    value: Score
    if isinstance(score, Mapping):
        value = {str(side): finite(number, f"the score of side '{side}'", name) for side, number in score.items()}
    else:
        value = finite(score, "the score", name)
        value = score if isinstance(score, DetailedScore) else value
    if is_default(tasks, "success"):  # as there
        return value, winner(value) is not None if isinstance(value, dict) else value >= 1.0
    (success,) = await scored(tasks.success, [(task, answer)], seconds)
    return value, bool(success)


async def measured(tasks: TaskSet, episode: Episode, seconds: float | None) -> dict[str, float]:
    """The measures of an episode's answer; none without one. MarlError for one that is no finite number; TimeoutError
    after `seconds`, during which other episodes go on."""
    if episode.answer is None or is_default(tasks, "measures"):
        return {}
    values, name = await perform(tasks.measures, (episode.task, episode.answer), seconds), tasks.measures.__qualname__
    return {str(key): finite(value, f"measure '{key}'", name) for key, value in values.items()}


def score_parts(score: Any, names: Iterable[str]) -> dict[str, float]:
    """The parts of a score with these names. MarlError for one that is missing (with the nearest) or not finite."""
    parts = score.parts if isinstance(score, DetailedScore) else {}
    for name in names:
        if name not in parts:
            why = nearest(name, parts) if parts else f"it is {shown(score)}"
            raise MarlError(f"the score has no part '{name}', which 'keys' of the advantage names: {why}")
    return {name: finite(parts[name], f"part '{name}' of the score", "the score function") for name in names}


def by_side(score: Score, agents: Mapping[str, AgentConfig] | None = None) -> tuple[float, dict[str, float]]:
    """(the team's score, side -> its score): the mean of the sides, or a number and {}. MarlError: the score does not
    have exactly the sides of `agents` (None: any)."""
    if not isinstance(score, dict):
        return score, {}
    if agents is not None:
        check_sides("the score is", score, sides_of(agents))
    return sum(score.values()) / max(len(score), 1), score
