"""The rollout worker: verl's agent-loop worker, which runs the sampler of the team on each task.

Uses verl internals: `AgentLoopWorkerTQ.generate_sequences`, which calls `_run_prompt` for each task.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from marl_verl import plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.algo.advantage.concat import concat
from marl_verl.algo.algorithms import Metric
from marl_verl.algo.credit.base import ReplayCredit, with_credit
from marl_verl.algo.sampling import Failure, Independent, Sample, Sampler
from marl_verl.algo.sampling.context import TaskContext, measured
from marl_verl.algo.sampling.stored import sample_lines
from marl_verl.algo.sampling.turn_columns import ColumnFunction, add_columns
from marl_verl.backend.verl.rollout.blocked import end_if_blocked
from marl_verl.backend.verl.rollout.client import PolicyClient
from marl_verl.backend.verl.rollout.context import Client, Gate, PolicySamplingContext, WorkerContext
from marl_verl.backend.verl.rollout.critic_rows import JointEncoder, add_joint_observations
from marl_verl.backend.verl.rollout.endpoint import EndpointClient, KeyedEndpoint
from marl_verl.backend.verl.rollout.rows import Row, turn_rows
from marl_verl.backend.verl.rollout.scripted import ScriptClient
from marl_verl.config.hardware import cpu_run
from marl_verl.config.parts import algorithm_of, columns_of, part, samplers_of
from marl_verl.config.stored import marl_section, team_of
from marl_verl.episode import Episode, Journal, Limits
from marl_verl.episode.communication import read_lengths
from marl_verl.errors import MarlError, format_error
from marl_verl.extensions import use_run_options, used_run_options
from marl_verl.options import build
from marl_verl.tasks.base import Task
from marl_verl.tasks.task import SET
from marl_verl.team import TeamConfig

logger = logging.getLogger(__name__)

LOGGED = 100
"""Maximum number of failures logged with a traceback, one per kind."""
SECONDS = ("act_seconds", "call_seconds", "episode_seconds")
"""Time limits in `marl.rollout`."""


@dataclass
class Report:
    """The outcome of one task for the driver, in addition to its rows."""

    uid: str
    task: str
    attempts: int = 0  # number of attempts, failures included
    extra_tokens: dict[str, int] = field(default_factory=dict)  # purpose -> sampled tokens that are in no row
    response_seconds: list[float] = field(default_factory=list)  # of each act of its episodes
    answer_seconds: list[float] = field(default_factory=list)  # per episode: of all its acts, a joint move as one
    successes: list[bool] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)  # of its episodes, without the task set's scale and shift
    outcomes: list[dict[str, float]] = field(default_factory=list)  # per episode: side -> its score, if there are sides
    rewards: list[dict[str, dict[str, float]]] = field(default_factory=list)  # per episode: agent -> component -> mean
    measures: list[dict[str, float]] = field(default_factory=list)  # per episode: `TaskSet.measures`
    read: list[tuple[str, float]] = field(default_factory=list)  # per turn: agent, tokens read from other agents
    set: str | None = None  # the public set of the task, if its data names one
    failures: list[Failure] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # episodes and failures to store, as JSON
    metrics: dict[str, float] = field(default_factory=dict)  # of the algorithm's own metrics
    error: str | None = None  # message if the sampler itself failed


@dataclass
class Sampled:
    """A task's report, its rows, none of a validation, and their table."""

    report: Report
    rows: list[Row] = field(default_factory=list)
    table: RowTable | None = None


@dataclass(frozen=True)
class Done:
    """Finished tasks: their reports, and the key and tag of each of their rows. A validation has no rows.

    The tensors of rows of trained policies are in TransferQueue. `table` has all rows; None without rows.
    """

    reports: list[Report]
    keys: list[str]
    tags: list[dict[str, Any]]
    table: RowTable | None


@dataclass(frozen=True)
class SamplerSet:
    """Samplers of training and of a validation's sampled pass, and what else an algorithm does with a sample."""

    training: Sampler
    held_out: Sampler
    credits: tuple[ReplayCredit, ...]
    metrics: tuple[Metric, ...]
    columns: Mapping[str, ColumnFunction]
    components: frozenset[str]  # reward components of the run


def collect_seldom() -> None:
    """Let Python's garbage collector scan less: with thousands of live episodes it takes half of the time of an act."""
    gc.collect()
    gc.freeze()  # what is loaded stays
    gc.set_threshold(50_000, 20, 50)


def load_samplers(marl: dict[str, Any], team: TeamConfig) -> SamplerSet:
    """Load the samplers, the replay credits, the metrics and the column functions that a `marl` section names."""
    algorithm = algorithm_of(team)
    samplers = samplers_of(algorithm, marl)
    return SamplerSet(
        samplers["sampler"],
        samplers["validation"],
        algorithm.replay_credits,
        algorithm.metrics,
        columns_of(algorithm),
        algorithm.components(team.agents),
    )


def load_worker_context(config: Any, llm_clients: dict[str, Any]) -> WorkerContext:
    """Load the parts that the team's config names. llm_clients: policy -> verl's client, or the external endpoint."""
    marl, team, known = marl_section(config), team_of(config), plugins.load()
    seconds = {name: marl["rollout"][name] for name in SECONDS}
    algorithm = algorithm_of(team)
    task_context = TaskContext(
        workflow=build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options"),
        tasks=build(known.get("tasks", team.task.name), team.task.options, "marl.task.options"),
        agents=team.agents,
        rewards={agent.reward: known.get("rewards", agent.reward) for agent in team.agents.values() if agent.reward},
        mix=algorithm.rewards,
        parts=algorithm.advantage.score_parts(),
        limits=Limits(tokens=marl["rollout"]["episode_tokens"], **seconds),
        explored=team.explored,
    )
    clients = {name: _client(name, config, team, server) for name, server in llm_clients.items()}
    run = marl["run"]
    use_run_options(run)
    trained = frozenset(name for name, policy in team.policies.items() if policy.trained)
    return WorkerContext(task_context, clients, int(run["seed"]), run.get("repeatable", True), trained)


def _client(name: str, config: Any, team: TeamConfig, server: Any) -> Client:
    policy, rollout = team.policies[name], config.actor_rollout_ref.rollout
    if isinstance(server, KeyedEndpoint):
        longest = int(config.data.max_response_length)
        return EndpointClient(name, server.endpoint, rollout, longest, policy.stop, key=server.key)
    if policy.script is not None:
        return ScriptClient(name, policy.script, part("scripts", policy.script, None), rollout)
    section = config.policies[name]
    adapter = team.sharing.index(name) if name in team.sharing else None
    parsers, template = (policy.tool_parser, policy.reasoning_parser), section.data.apply_chat_template_kwargs
    client = PolicyClient(name, section.actor_rollout_ref, server, template, policy.stop, parsers, adapter)
    for agent in team.agents.values():  # before a start, a model on the hub may not be on this machine
        if agent.policy == name:
            client.chat.check(agent)
    return client


class _TeamRolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """Samples tasks. verl splits a batch into prompts and starts `_run_prompt` as a background task for each."""

    def __init__(self, config: Any, llm_client: dict[str, Any], *args: Any) -> None:
        super().__init__(config, llm_client, *args)
        self.parts = load_worker_context(config, llm_client)
        marl, team = marl_section(config), team_of(config)
        self.samplers = load_samplers(marl, team)
        self.learning = {name for name, policy in team.policies.items() if policy.trained}
        self.joint = JointEncoder.of(config, self.parts.task_context.agents)
        self.observers = plugins.load().hook
        self._sampled: dict[str, asyncio.Future[Sampled]] = {}  # uid -> what came of the task
        # the asynchronous schedule receives single tasks, and holds requests while a policy's weights change
        self._streams = marl["schedule"]["mode"] == "async"
        self._finished: asyncio.Queue[str] = asyncio.Queue()
        self._gates = {name: Gate() for name in self.learning} if self._streams else {}
        self._logged: set[tuple[str, str]] = set()
        self._watched = False  # whether `end_if_blocked` watches the loop
        if cpu_run():
            from marl_verl.backend.verl.platforms.cpu import return_memory

            return_memory()  # of loading tokenizers
        collect_seldom()

    def plugin_fingerprint(self) -> tuple[str, ...]:
        """The fingerprint of the loaded plugins, which the driver compares with its own."""
        return plugins.load().fingerprint()

    def assign(self, policies: dict[str, str]) -> None:
        """Let agents act with other policies, agent -> policy."""
        context = self.parts.task_context
        agents = {name: replace(agent, policy=policies[name]) for name, agent in context.agents.items()}
        self.parts = replace(self.parts, task_context=replace(context, agents=agents))

    async def collect(self, uids: list[str]) -> Done:
        """Wait for tasks, and write the tensors of their rows."""
        tasks = [await self._outcome(uid) for uid in uids]
        for uid in uids:
            del self._sampled[uid]
        rows = [row for task in tasks for row in task.rows]
        if learnt := [row for row in rows if row.fields is not None]:
            fields = list_of_dict_to_tensordict([row.fields for row in learnt])
            keys, tags = [row.key for row in learnt], [row.tag for row in learnt]
            await tq.async_kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
        tables = [task.table for task in tasks if task.table is not None]
        table = concat(tables) if tables else None
        return Done([task.report for task in tasks], [row.key for row in rows], [row.tag for row in rows], table)

    async def finished(self) -> list[Done]:
        """Wait until a training task is finished; all finished ones, each alone. Call it once at a time."""
        uids = [await self._finished.get()]
        while not self._finished.empty():
            uids.append(self._finished.get_nowait())
        return await asyncio.gather(*(self.collect([uid]) for uid in uids))

    async def close_gate(self, policy: str) -> None:
        await self._gates[policy].close()

    async def open_gate(self, policy: str) -> None:
        self._gates[policy].open()

    def _outcome(self, uid: str) -> asyncio.Future[Sampled]:
        if uid not in self._sampled:
            self._sampled[uid] = asyncio.get_running_loop().create_future()
        return self._sampled[uid]

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        """Sample one task and keep its rows. Always ends with a report, even if marl-verl itself fails."""
        sampled = Sampled(Report(uid=str(prompt["uid"]), task=str(prompt["task"])))
        report, limits = sampled.report, self.config.marl.rollout
        # without a limit of calls, they run in the loop
        if None not in (limits.step_seconds, limits.call_seconds) and not self._watched:
            self._watched = True
            end_if_blocked(asyncio.get_running_loop(), float(limits.step_seconds))
        try:
            await self._play(prompt, sampling_params, trajectory, sampled)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            logger.exception("sampling task %s failed", report.task)
            report.error = type(error).__name__
            report.error += f": {error}"
        finally:  # the driver waits for it, also if the message of the error raises
            self._outcome(report.uid).set_result(sampled)
            if self._streams and not trajectory["validate"]:
                self._finished.put_nowait(report.uid)

    async def _play(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], sampled: Sampled
    ) -> None:
        task, report, uid = Task(**json.loads(prompt["task"])), sampled.report, sampled.report.uid
        report.task, report.set = task.id, task.data.get(SET)
        validate, step, marl = bool(trajectory["validate"]), int(trajectory["step"]), self.config.marl
        # verl passes validation parameters; in training each policy and agent has its own
        held_out = sampling_params if validate and not prompt.get("sampled", False) else None
        if not validate:
            sampler = self.samplers.training
        else:
            sampler = self.samplers.held_out if held_out is None else Independent(episodes=1)
        context = PolicySamplingContext(self.parts, task, uid, step, held_out, self._gates)
        sample = await sampler.sample(context)
        if not validate:
            for credit in self.samplers.credits:
                await with_credit(credit, context, sample)
            add_columns(self.samplers.columns, sample)
        await self._fill(report, sample)
        # failures are always stored, so that they can be examined without repeating the run
        stored = sample if prompt["keep"] else Sample(failures=sample.failures)
        tokens = bool(marl.run.journal_tokens)
        report.lines = sample_lines(stored, uid, task.id, tokens, used_run_options())
        if not validate:
            for metric in self.samplers.metrics:
                report.metrics.update(metric.of_sample(sample))
            sampled.rows = turn_rows(sample.turns, step, self.learning)
            if sample.turns:
                sampled.table = RowTable.of(sample.turns, self.samplers.components, self.learning)
            if self.joint is not None:
                add_joint_observations(sampled.rows, sample.episodes, self.joint)

    async def _fill(self, report: Report, sample: Sample) -> None:
        report.failures, report.attempts, report.extra_tokens = sample.failures, sample.attempts, sample.extra_tokens
        for failure in sample.failures:
            if failure.trace:
                self._log(
                    failure.reason, failure.trace.rstrip().rpartition("\n")[2], f"{failure.detail}\n{failure.trace}"
                )
        for episode in sample.episodes:
            try:
                self.observers.marl_episode_finished(episode=episode)
            except Exception as error:
                raise MarlError(f"hook marl_episode_finished failed: {format_error(error)}") from error
            report.successes.append(episode.success)
            report.scores.append(episode.score)
            if episode.outcomes:
                report.outcomes.append(episode.outcomes)
            report.response_seconds += [turn.action.seconds for turn in episode.turns]
            report.answer_seconds.append(answer_seconds(episode.journal))
            report.rewards.append(_mean_rewards(episode))
            agents = (turn.agent for turn in episode.turns)
            report.read += zip(agents, read_lengths(episode), strict=True)
        measures = (measured(self.parts.task_context.tasks, episode) for episode in sample.episodes)
        for result in await asyncio.gather(*measures, return_exceptions=True):
            if isinstance(result, Exception):  # no reward depends on it
                self._log("measures", format_error(result), f"of an answer to task {report.task} failed: {result!r}")
            elif not isinstance(result, BaseException):
                report.measures.append(result)

    def _log(self, reason: str, kind: str, text: str) -> None:
        """Log a failure, one per kind."""
        if (reason, kind) not in self._logged and len(self._logged) < LOGGED:
            self._logged.add((reason, kind))
            logger.warning("%s: %s", reason, text)


def answer_seconds(journal: Journal) -> float:
    """Seconds of an episode's acts, one after the other; of a joint move those of its slowest act."""
    moves: dict[tuple[str, int | None], float] = {}
    for record in journal.acts():
        act, seconds = record.act, record.action.seconds
        move = ("act", act.index) if act.joint is None else ("joint", act.joint)
        moves[move] = max(moves.get(move, 0.0), seconds)
    return sum(moves.values())


def _mean_rewards(episode: Episode) -> dict[str, dict[str, float]]:
    """Agent -> component -> its mean over the agent's turns in the episode."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in episode.turns:
        for component, value in turn.components.items():
            values.setdefault(turn.agent, {}).setdefault(component, []).append(value)
    return {agent: {name: sum(row) / len(row) for name, row in rows.items()} for agent, rows in values.items()}


TeamRolloutWorker = ray.remote(_TeamRolloutWorker)
