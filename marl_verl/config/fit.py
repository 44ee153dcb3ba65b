"""Compatibility checks of sampler, algorithm, team and task set, made before a run starts.

The run's own sampler makes synthetic rows of synthetic actions and scores, without a model. They have the nodes,
episodes, turns and components of the team's rows: computing their advantages shows whether the algorithm fits.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import numpy as np
from omegaconf import DictConfig

from marl_verl.algo.advantage import PerRole, RowTable
from marl_verl.algo.advantage.estimator import Rows
from marl_verl.algo.advantage.returns import Returns
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.algorithm import add_metrics
from marl_verl.algo.credit import ReplayCredit
from marl_verl.algo.sampling import Candidate, Sample, Sampler
from marl_verl.algo.sampling.context import SamplingContext, TaskContext
from marl_verl.algo.sampling.sampler import add_columns
from marl_verl.config.parts import algorithm_for, algorithm_named, columns_of, loss_of
from marl_verl.config.schema import FILTER, SCHEDULE, marl_of
from marl_verl.episode import Act, Action, Team, Turn, Workflow
from marl_verl.episode.communication import COSTS
from marl_verl.episode.effects import NOT_REPLAYABLE
from marl_verl.errors import MarlError, check, check_returned, unknown, user_error
from marl_verl.extensions import required
from marl_verl.options import Part, config_of
from marl_verl.tasks import Task, TaskSet
from marl_verl.tasks.base import is_default
from marl_verl.team import TeamConfig, sides_of
from marl_verl.team import check_sides as team_sides
from marl_verl.threads import TimeUp, time_limit, without_breakpoints

MOST_MOVES = 3
SECONDS = 40.0  # of a sampler for a task, and of an algorithm for the rows
ENDLESS = f"it does not end within {SECONDS:.0f} s"
Samplers = dict[str, tuple[str, Sampler]]  # those of `samplers_of`


@check
def check_samplers(samplers: Samplers, team: TeamConfig, tasks: TaskSet, workflow: Workflow) -> Iterator[str]:
    """MarlError for samplers that team, task set or workflow do not allow."""
    for section, (name, sampler) in samplers.items():
        with user_error(f"marl.{section}.options"):
            sampler.check(list(team.agents))
        if sampler.branches and not workflow.replayable:
            problem = f"marl.{section}: workflow '{team.workflow.name}' {NOT_REPLAYABLE}, but sampler"
            yield f"{problem} '{name}' branches from replays: use 'independent' or 'best-of'"
        if sampler.public and is_default(tasks, "public_score"):
            problem = f"marl.{section}: sampler '{name}' needs public scores, but task set '{team.task.name}'"
            yield f"{problem} has none: implement TaskSet.public_score, or use sampler 'independent'"
    name, sampler = samplers["validation"]
    if sampler.branches and not sampler.public:
        problem = f"sampler '{name}' selects by the true score, which a validation must not use"
        yield f"{problem}: use 'independent', 'best-of', or 'tree-search' with options {{guide: public}}"


@check
def check_sides(samplers: Samplers, algorithm: Algorithm, team: TeamConfig, tasks: TaskSet) -> Iterator[str]:
    """MarlError unless the task set scores the team's sides, and all parts work with agents of several sides."""
    sides = sides_of(team.agents)
    if tasks.sides:
        team_sides(f"task set '{team.task.name}' has scores", tasks.sides, sides)
    if not sides:
        return
    parts: list[tuple[str, Sampler | Part]] = [(f"sampler '{name}'", sampler) for name, sampler in samplers.values()]
    parts += [(f"{part.kind} '{part.name}'", part) for part in algorithm.parts()]
    listed = " and ".join(f"'{side}'" for side in sides)
    for label, part in parts:
        if part.one_side is not None:
            yield f"{label} needs agents of one side, but the team has {listed}: {part.one_side}"


@check
def check_fit(sampler: Sampler, algorithm: Algorithm, team: TeamConfig, replayable: bool = True) -> Iterator[str]:
    """MarlError if credit or advantage is incompatible with the rows that the sampler makes, or with the workflow."""
    for agent in team.agents.values():
        mine, where, policy = algorithm_for(team, agent), f"marl.agents.{agent.name}.algorithm", agent.policy
        if agent.algorithm is not None and team.policies[policy].frozen:
            yield f"policy '{policy}' is frozen: remove '{where}', which has no effect"
        if team.policies[policy].loss is None and mine.loss != (loss := loss_of(team, policy)[0]):
            problem = f"policy '{policy}' has one loss, '{loss}', but that of agent '{agent.name}' is '{mine.loss}'"
            yield f"{problem}: set marl.policies.{policy}.loss, or give each agent a policy"
        for part in ("sampler", "rewards", "credit", "columns"):
            shared = getattr(algorithm, part)
            if getattr(mine, part) not in (shared, getattr(Algorithm(), part)):
                remedy = f"set {where}.options.{part}={json.dumps(config_of(shared))} for its advantage and loss only"
                yield f"'{where}' has another {part} than the run: {remedy}, or marl.algorithm.options.{part} for all"
    yield from (problem for part in algorithm.parts() if isinstance(part, PerRole) for problem in part.problems())
    # a credit that replaces component `team` is not an increment
    incremental = sampler.incremental and not any("team" in credit.consumed() for credit in algorithm.credit)
    rows = Rows(sampler.branches, sampler.crossed, incremental, sampler.greedy)
    if (why := algorithm.advantage.incompatibility(rows)) is not None:
        usual = algorithm_named(team.algorithm.name, None, "").sampler
        hint = "" if usual == algorithm.sampler else f" (the algorithm's own sampler is '{usual}')"
        yield f"sampler '{algorithm.sampler}' is incompatible with algorithm '{team.algorithm.name}': {why}{hint}"
    returns = [part for part in algorithm.parts() if isinstance(part, Returns)]
    for cost in algorithm.rewards.required():
        joint = [part.name for part in returns if part.one_side]
        if joint or (sampler.branches and cost in COSTS):
            label = f"returns '{joint[0]}' sums the turns of all agents" if joint else "turns of a tree are of several"
            yield f"reward component '{cost}' is of one agent's whole episode, but {label}: leave it out of the mix"
    if algorithm.advantage.wants_critic() == "team" and sampler.public:
        problem = f"sampler '{algorithm.sampler}' makes off-path turns, which have no joint observation for the critic"
        yield f"{problem} of algorithm '{team.algorithm.name}': use sampler 'independent'"
    for credit in algorithm.credit:
        if (why := credit.incompatibility(sampler.branches)) is not None:
            yield f"credit '{credit.name}' is incompatible with sampler '{algorithm.sampler}': {why}"
        if credit.repeated and any(part.sums_turns for part in returns):
            problem = f"credit '{credit.name}' is repeated on every turn of an agent, but the returns sum over turns"
            remedy = "use returns 'immediate', or a credit of single acts (counterfactual with unit: act)"
            yield f"{problem}: {remedy}"
        if not isinstance(credit, ReplayCredit):
            continue
        if not replayable:
            problem = f"workflow '{team.workflow.name}' {NOT_REPLAYABLE}, but credit '{credit.name}' replays its"
            yield f"{problem} episodes: set marl.algorithm.options.credit=none"
        if sampler.branches or sampler.public or type(sampler).shared is not Sampler.shared:
            made = "off-path turns" if sampler.branches or sampler.public else "one agent act for others"
            problem = f"credit '{credit.name}' replays whole episodes, but sampler '{algorithm.sampler}' makes {made}"
            yield f"{problem}: use sampler 'independent'"
        with user_error("marl.algorithm.options.credit"):
            credit.check(list(team.agents))


@without_breakpoints()
def check_advantage(synthetic: "SyntheticTeam") -> None:
    """MarlError if the algorithm lacks a reward or a group column of synthetic rows, compares none, or a part fails."""
    algorithm, turns = synthetic.algorithm, synthetic.turns(0)
    label = f"algorithm '{synthetic.team.algorithm.name}' does not fit the team"
    with user_error(label, Exception, line=True), user_error(ENDLESS, TimeUp), time_limit(SECONDS):
        table = synthetic.table(turns)
        result = algorithm.compute(table)
        values: dict[str, float] = {}
        for metric in algorithm.metrics:
            add_metrics(values, metric.of_rows(table, result), f"`of_rows` of metric '{metric.name}'")
        if not synthetic.sampler.branches:  # twice the episodes: groups of several rows
            again = [replace(turn, session=len(turns) + turn.session) for turn in turns]
            algorithm.compute(synthetic.table([*turns, *again]))
        single = 1 in [value for value in vars(synthetic.sampler).values() if type(value) is int]
        taught = any(policy.teacher for policy in synthetic.team.policies.values())
        if single and not (taught or algorithm.compute(synthetic.table([*turns, *synthetic.turns(1)])).advantage.any()):
            raise MarlError("nothing is compared, so that all advantages are 0: raise marl.sampler.options")


@dataclass(frozen=True)
class SyntheticTeam:
    """Maker of synthetic rows; `moves` are the first moves of the rehearsed workflow (agents that act concurrently)."""

    sampler: Sampler
    algorithm: Algorithm
    team: TeamConfig
    moves: tuple[tuple[str, ...], ...] = ()

    @without_breakpoints()
    def turns(self, number: int, episodes: int | None = None) -> list[Turn]:
        """The turns of task `number`: all, or those of its first `episodes`. MarlError where the sampler fails."""
        name, agents = self.algorithm.sampler, self.team.agents
        # a role reward that differs between the agents of a joint move
        named = [agent.reward for agent in agents.values() if agent.reward]
        rewards = dict.fromkeys(named, lambda task, turn, episode: 1.0 + (turn.session + turn.index) % 2)
        acting = {agent for move in self.moves[:MOST_MOVES] for agent in move}
        moves = (*self.moves[:MOST_MOVES], *((agent,) for agent in agents if agent not in acting))
        moves += moves[:number]  # episodes of different tasks differ in length
        workflow, mix = _SyntheticWorkflow(moves), self.algorithm.rewards
        tasks = _SyntheticTasks(scored=sides_of(agents))
        task_context = TaskContext(workflow, tasks, agents, rewards, mix, explored=self.team.explored)
        task = Task(f"synthetic-{number}", "", {"number": number})
        context = _SyntheticContext(task_context, task, task.id)
        label = f"sampler '{name}' fails on a synthetic task of the team"
        with user_error(label, Exception, line=True), user_error(ENDLESS, TimeUp), time_limit(SECONDS):
            sample = asyncio.run(self.sampler.sample(context))
            check_returned(sample, Sample, f"`{type(self.sampler).__name__}.sample` must return a Sample")
            if sample.failures or not sample.turns:
                raise MarlError(sample.failures[0].detail if sample.failures else "it returned no turns")
        for credit in self.algorithm.replay_credits:  # no replays: a credit may support its own workflow only
            players = credit.players(list(agents))
            for turn in (turn for turn in sample.turns if turn.agent in players):
                turn.rewards[credit.component] = (1 + turn.session) / (1 + turn.index)
        for turn in sample.turns:
            parts = self.algorithm.advantage.score_parts()
            turn.rewards |= {name: (1.0 + turn.session) / (2 + i) for i, name in enumerate(parts)}
        add_columns(columns_of(self.algorithm), sample)
        chosen = {id(turn) for episode in sample.episodes[:episodes] for turn in episode.turns}
        return [turn for turn in sample.turns if episodes is None or id(turn) in chosen]

    def table(self, turns: Sequence[Turn]) -> RowTable:
        table = RowTable.of(turns, self.algorithm.components(self.team.agents), self.team.explored)
        return replace(table, values=np.zeros(len(table))) if self.algorithm.advantage.wants_critic() else table


@check
def check_schedule(
    config: DictConfig, team: TeamConfig, algorithm: Algorithm, synthetic: SyntheticTeam
) -> Iterator[str]:
    """MarlError if filter or schedule are incompatible with the run; `config` is resolved, with `policies`."""
    settings, trained = marl_of(config).schedule, team.trained
    if marl_of(config).sampler.filters is not None and algorithm.advantage.wants_critic() is not None:
        problem = f"'{FILTER}' has no effect, because the advantages come from a critic: no group is compared"
        yield f"{problem}. Set {FILTER}=null, or choose an algorithm without a critic, e.g. grpo."
    if settings.turns is not None:
        named = [name for turn in settings.turns for name in turn]
        for name in (name for name in named if name not in trained):
            yield str(unknown("trained policy", name, trained)) + f" ('{SCHEDULE}.turns')"
        if never := [name for name in trained if name not in named]:
            problem = f"policy '{never[0]}' has no turn in '{SCHEDULE}.turns', so that it never learns"
            yield f"{problem}: add it, or freeze it"
    if settings.mode != "sync":
        schedule = required("schedule", settings.mode, f"{SCHEDULE}.mode={settings.mode}", "asynchronous")
        yield from schedule.problems(config, team, algorithm, synthetic)


class _SyntheticWorkflow(Workflow):
    """Workflow of given moves; the team proposes an answer after each."""

    moves: tuple[tuple[str, ...], ...]

    async def run(self, task: Task, team: Team) -> str:
        message = ""
        for move in self.moves:
            for agent in move:  # reward component `tool` needs a call
                await team[agent].call(len, agent)
            seen = {agent: f"{task.id}: {agent} acts" for agent in move}
            actions = await team.act(seen) if len(seen) > 1 else {move[0]: await team[move[0]].act(seen[move[0]])}
            for action in actions.values():
                message += action.text
                if _number(action.text, 2):
                    team.invalid(action, "synthetic")
            team.propose(message)
        return message


class _SyntheticTasks(TaskSet):
    """Task set whose scores differ between answers and sides (`scored`), and more between tasks."""

    quick = True
    scored: tuple[str, ...] = ()

    def score(self, task: Task, answer: Any) -> float | dict[str, float]:
        score = _number(answer, 97) / 8 + 20.0 * int(task.data["number"])
        return {side: score + number for number, side in enumerate(self.scored)} or score

    def public_score(self, task: Task, answer: Any) -> float:
        return _number(answer, 53) / 8


class _SyntheticContext(SamplingContext):
    """Its actions differ by agent, slot, session and candidate."""

    def seed(self, session: int) -> int:
        return session

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        text = f"({agent or act.agent} {act.slot} {session} {candidate})"
        ids = [*range(1 + _number(text, 16))]
        return Action(text, [], ids, [-0.1 * (1 + number) for number in ids], stop_reason="stop", version=0)

    def value(self, turns: Sequence[Turn]) -> list[float]:
        """The sum of the components; errors of the mix appear when the advantage is computed."""
        return [sum(turn.components.values()) for turn in turns]


def _number(text: str, below: int) -> int:
    return crc32(text.encode()) % below
