"""The rollout worker of every backend: it runs the sampler of the team on each task."""

import asyncio
import gc
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from marl_verl import plugins
from marl_verl.algo.advantage.rows import TableRow
from marl_verl.algo.algorithms.algorithm import add_metrics
from marl_verl.algo.credit import with_credit
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.algo.sampling.context import TaskContext, measured
from marl_verl.algo.sampling.sampler import add_columns, sample_lines
from marl_verl.backend.protocol import Report, RowStore, TaskRow, TurnCount
from marl_verl.backend.rollout.clients import Client, PolicyClient, ScriptClient, default_sampling
from marl_verl.backend.rollout.context import PolicySamplingContext, WorkerContext
from marl_verl.backend.rollout.rows import JointObservations, row_fields, row_tag
from marl_verl.config.parts import algorithm_of, columns_of, samplers_of
from marl_verl.config.stored import is_local, marl_section, team_of
from marl_verl.episode import Episode, Journal
from marl_verl.episode.codec import decode_journal
from marl_verl.episode.communication import read_lengths
from marl_verl.episode.errors import Limits
from marl_verl.errors import after_notes, check_returned, format_error
from marl_verl.extensions import extension, use_run_options, used_run_options
from marl_verl.options import build
from marl_verl.tasks.base import SET, Task
from marl_verl.team import TeamConfig

logger = logging.getLogger(__name__)

LOGGED = 100  # maximum number of failures logged with a traceback, one per kind

Tensors = Mapping[str, dict[str, Any]]
"""The tensors of a task's rows of trained policies, by key."""


def _client(name: str, config: Any, team: TeamConfig, server: Any) -> Client:
    policy, rollout = team.policies[name], config.actor_rollout_ref.rollout
    if policy.endpoint is not None:
        longest = int(config.data.max_response_length)
        client = extension("client", "endpoint").EndpointClient
        return client(name, policy.endpoint, server, rollout, longest, policy.stop)
    if policy.script is not None:
        return ScriptClient(name, policy.script, plugins.load().get("scripts", policy.script), rollout)
    section = config.policies[name]
    # in one process each policy has a model of its own
    adapter = team.sharing.index(name) if name in team.sharing and not is_local(config) else None
    parsers, template = (policy.tool_parser, policy.reasoning_parser), section.data.apply_chat_template_kwargs
    client = PolicyClient(name, section.actor_rollout_ref, server, template, policy.stop, parsers, adapter)
    for agent in team.agents.values():  # before a start, a model on the hub may not be on this machine
        if agent.policy == name:
            client.chat.check(agent)
    return client


def collect_seldom() -> None:
    """Let Python's garbage collector scan less: with thousands of live episodes it takes half of the time of an act."""
    gc.collect(1)  # what young objects have left; all take most of a second
    gc.freeze()  # what is loaded stays
    gc.set_threshold(50_000, 20, 50)


class RolloutWorker:
    """Plays tasks: the sampler of the team on each, with the clients of its policies (`Runtime.client`).

    `config` is the resolved config; the tensors of rows go to `store`.
    """

    caught: tuple[type[BaseException], ...] = (Exception, SystemExit, KeyboardInterrupt, asyncio.CancelledError)
    """Exceptions that end the sampling of a task with a report."""

    def __init__(self, config: Any, clients: Mapping[str, Any], store: RowStore) -> None:
        marl, team, known = marl_section(config), team_of(config), plugins.load()
        algorithm, run, limits = algorithm_of(team), marl["run"], marl["rollout"]
        self.config, self.store, self.algorithm, self.observers = config, store, algorithm, known.hook
        named = [agent.reward for agent in team.agents.values() if agent.reward]
        seconds = {name: limits[name] for name in ("act_seconds", "call_seconds", "episode_seconds")}
        task_context = TaskContext(
            workflow=build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options"),
            tasks=build(known.get("tasks", team.task.name), team.task.options, "marl.task.options"),
            agents=team.agents,
            rewards={reward: known.get("rewards", reward) for reward in named},
            mix=algorithm.rewards,
            parts=algorithm.advantage.score_parts(),
            limits=Limits(spawned=limits["episode_agents"], tokens=limits["episode_tokens"], **seconds),
            explored=team.explored,
        )
        clients = {name: _client(name, config, team, server) for name, server in clients.items()}
        self.alone = asyncio.Lock() if any(client.alone for client in clients.values()) else nullcontext()
        use_run_options(run)
        trained, mode = frozenset(team.trained), marl["schedule"]["mode"]
        gates = {} if mode == "sync" else {name: extension("schedule", mode).Gate() for name in trained}
        self.parts = WorkerContext(task_context, clients, int(run["seed"]), run.get("repeatable", True), trained, gates)
        self.samplers, self.columns = samplers_of(algorithm, marl), columns_of(algorithm)
        self.joint = JointObservations.of(config, team.agents)
        rollout = config.actor_rollout_ref.rollout
        self._greedy = default_sampling(rollout.val_kwargs) | {"logprobs": bool(rollout.calculate_log_probs)}
        self._logged: set[tuple[str, str]] = set()

    def assign(self, policies: Mapping[str, str]) -> None:
        """Let agents act with other policies, agent -> policy."""
        context = self.parts.task_context
        agents = {name: replace(agent, policy=policies[name]) for name, agent in context.agents.items()}
        self.parts = replace(self.parts, task_context=replace(context, agents=agents))

    async def play(self, task: TaskRow, step: int, validate: bool) -> tuple[Report, Tensors]:
        """Play one task. Always ends with a report, even if marl-verl itself fails."""
        report = Report(uid=str(task["uid"]), task=str(task["task"]))
        try:
            return report, await self._play(task, step, validate, report)
        except self.caught as error:
            logger.exception("sampling task %s failed", report.task)
            report.error = type(error).__name__
            with suppress(Exception):  # the driver waits for the report, also if the message raises
                report.error += f": {after_notes(error, str(error))}"
            return report, {}

    def stored(self, played: Sequence[tuple[Report, Tensors]]) -> list[Report]:
        """The reports of finished tasks, when the tensors of their rows are written."""
        if learnt := {key: fields for _, tensors in played for key, fields in tensors.items()}:
            names = next(iter(learnt.values()))
            self.store.put(list(learnt), {name: [fields[name] for fields in learnt.values()] for name in names})
        return [report for report, _ in played]

    async def _play(self, row: TaskRow, step: int, validate: bool, report: Report) -> Tensors:
        task, uid, states = Task(**json.loads(row["task"])), report.uid, row.get("states", {})
        report.task, report.set = task.id, task.data.get(SET)
        # in training each policy and agent has sampling parameters of its own
        held_out, (_, sampler) = None, self.samplers["validation" if validate else "sampler"]
        if validate and not row.get("sampled", False):
            held_out, sampler = self._greedy, Independent(episodes=1)
        context = PolicySamplingContext(self.parts, task, uid, step, held_out)
        context.alone = self.alone
        context.begun = decode_journal(row["journal"]) if "journal" in row else None
        for name, sent in states.items():
            extension("state", name).enter(sent)
        sample = await sampler.sample(context)
        check_returned(sample, Sample, f"`{type(sampler).__name__}.sample` must return a Sample")
        report.written = {name: extension("state", name).written(sample.episodes) for name in states}
        if not validate:
            for credit in self.algorithm.replay_credits:
                await with_credit(credit, context, sample)
            add_columns(self.columns, sample)
        await self._fill(report, sample)
        # failures are always stored, so that they can be examined without repeating the run
        stored = sample if row["keep"] else Sample(failures=sample.failures)
        tokens = bool(self.config.marl.run.journal_tokens)
        report.lines = sample_lines(stored, uid, task.id, tokens, used_run_options())
        if validate:
            return {}
        for metric in self.algorithm.metrics:
            add_metrics(report.metrics, metric.of_sample(sample), f"`of_sample` of metric '{metric.name}'")
        trained, tags = self.parts.trained, {turn.row: row_tag(turn, step) for turn in sample.turns}
        fields = {turn.row: row_fields(turn) for turn in sample.turns if turn.policy in trained}
        if self.joint is not None:
            self.joint.add(fields, tags, sample.episodes)
        clients = {name: self.parts.clients[name] for name in trained}
        for turn in (turn for turn in sample.turns if turn.policy in trained):
            for policy, action in sampler.shared(context, turn, clients).items():
                shared, key = replace(turn, policy=policy, action=action), f"{turn.row}_{policy}"
                fields[key] = row_fields(shared)
                tags[turn.row].setdefault("shared", {})[key] = {**row_tag(shared, step), "source": turn.policy}
        report.rows = [TableRow.of(turn, trained, tags[turn.row]) for turn in sample.turns]
        return fields

    async def _fill(self, report: Report, sample: Sample) -> None:
        report.failures, report.attempts, report.extra_tokens = sample.failures, sample.attempts, sample.extra_tokens
        for failure in sample.failures:
            if failure.trace:
                last = failure.trace.rstrip().rpartition("\n")[2]
                self._log(failure.reason, last, f"{failure.detail}\n{failure.trace}")
        for episode in sample.episodes:
            self.observers.marl_episode_finished(episode=episode)
            report.successes.append(episode.success)
            report.scores.append(episode.score)
            if episode.outcomes:
                report.outcomes.append(episode.outcomes)
            report.answer_seconds.append(answer_seconds(episode.journal))
            report.rewards.append(_mean_rewards(episode))
            for turn, read in zip(episode.turns, read_lengths(episode), strict=True):
                invalid, cut_off = turn.invalid is not None, turn.action.stop_reason == "length"
                report.turns.append(TurnCount(turn.role, turn.length, read, invalid, cut_off))
        context = self.parts.task_context
        measures = (measured(context.tasks, episode, context.limits.call_seconds) for episode in sample.episodes)
        for result in await asyncio.gather(*measures, return_exceptions=True):
            if isinstance(result, Exception):  # no reward depends on it
                self._log("measures", format_error(result), f"of an answer to task {report.task} failed: {result!r}")
            elif not isinstance(result, BaseException):
                report.measures.append(result)

    def _log(self, reason: str, kind: str, text: str) -> None:
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
    """Agent -> component -> its mean over the turns of this role in the episode."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in episode.turns:
        for component, value in turn.components.items():
            values.setdefault(turn.role, {}).setdefault(component, []).append(value)
    return {agent: {name: sum(row) / len(row) for name, row in rows.items()} for agent, rows in values.items()}
