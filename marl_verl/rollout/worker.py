"""The rollout worker: verl's, where a prompt becomes whatever the sampler makes of it.

Touches verl: `AgentLoopWorkerTQ._run_prompt` and the status tags that `ReplayBuffer` reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field
from typing import Any

import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from marl_verl import plugins
from marl_verl.algorithms import Metric
from marl_verl.config.parts import algorithm_of, metrics_of
from marl_verl.config.stored import marl_section, team_of
from marl_verl.credit.base import Credit, ReplayCredit, with_credit
from marl_verl.episode import Episode, Limits
from marl_verl.errors import MarlError
from marl_verl.journals.write import sample_lines
from marl_verl.options import build
from marl_verl.rollout.asking import Client
from marl_verl.rollout.client import PolicyClient
from marl_verl.rollout.critic_rows import JointEncoder, add_joint_observations
from marl_verl.rollout.endpoint import EndpointClient
from marl_verl.rollout.gate import Gate
from marl_verl.rollout.rollouts import TaskRollouts, TeamParts
from marl_verl.rollout.rows import Row, turn_rows
from marl_verl.sampling import Failure, Independent, Sample, Sampler
from marl_verl.sampling.rollouts import Scene
from marl_verl.tasks.base import Task
from marl_verl.team import Endpoint, TeamConfig

logger = logging.getLogger(__name__)

LOGGED = 100
"""Failures whose traceback goes to the log, one of a kind."""


@dataclass
class Report:
    """What became of one task: what the driver needs to know beyond the rows.

    Attributes:
        attempts: what `failures` are a share of.
        extra_tokens: what for -> tokens sampled that are no row.
        lines: its episodes and failures as lines of JSON, where they are to be stored.
        metrics: numbers of the algorithm's own metrics.
        error: the sampler itself failed.
    """

    uid: str
    task: str
    attempts: int = 0
    extra_tokens: dict[str, int] = field(default_factory=dict)
    successes: list[bool] = field(default_factory=list)
    rewards: list[dict[str, dict[str, float]]] = field(default_factory=list)  # an episode: agent -> component -> mean
    failures: list[Failure] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True)
class Done:
    """A finished task of training: what became of it, and the key and tag of each of its rows in TransferQueue."""

    report: Report
    keys: list[str]
    tags: list[dict[str, Any]]


@dataclass(frozen=True)
class Ways:
    """How tasks are sampled: in training, and in the two passes of a validation; and who is credited."""

    training: Sampler
    credit: Credit
    metrics: tuple[Metric, ...]
    held_out: Sampler
    greedy: Sampler = field(default_factory=Independent)


def load_ways(marl: dict[str, Any], team: TeamConfig) -> Ways:
    """The samplers and the credit scheme that a `marl` section names."""
    known, algorithm = plugins.load(), algorithm_of(team)
    validation = marl["validation"]
    return Ways(
        training=build(known.get("samplers", algorithm.sampler), marl["sampler"]["options"], "marl.sampler.options"),
        credit=algorithm.credit,
        metrics=metrics_of(algorithm),
        held_out=build(known.get("samplers", validation["sampler"]), validation["options"], "marl.validation.options"),
    )


def load_limits(rollout: dict[str, Any]) -> Limits:
    """The limits that `marl.rollout` sets."""
    return Limits(
        tokens=rollout["episode_tokens"],
        act_seconds=rollout["act_seconds"],
        call_seconds=rollout["call_seconds"],
        step_seconds=rollout["step_seconds"],
        episode_seconds=rollout["episode_seconds"],
    )


def load_parts(config: Any, llm_clients: dict[str, Any]) -> TeamParts:
    """Load everything the team's config names, in this process.

    Args:
        llm_clients: for each policy verl's client for its servers, or the endpoint that it is.
    """
    marl, team = marl_section(config), team_of(config)
    known = plugins.load()
    algorithm = algorithm_of(team)
    scene = Scene(
        workflow=build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options"),
        tasks=build(known.get("tasks", team.task.name), team.task.options, "marl.task.options"),
        agents=team.agents,
        rewards={agent.reward: known.get("rewards", agent.reward) for agent in team.agents.values() if agent.reward},
        mix=algorithm.rewards,
        limits=load_limits(marl["rollout"]),
    )
    return TeamParts(
        scene=scene,
        clients={name: _client(name, config, llm_clients[name]) for name in llm_clients},
        seed=int(marl["run"]["seed"]),
    )


def _client(name: str, config: Any, server: Any) -> Client:
    if isinstance(server, Endpoint):
        return EndpointClient(name, server, config.actor_rollout_ref.rollout, int(config.data.max_response_length))
    template = config.data.get("apply_chat_template_kwargs") or {}
    return PolicyClient(name, config.policies[name].actor_rollout_ref, server, template)


class _TeamRolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """verl unpacks a batch into prompts and starts a background task for each; from there it is ours.

    Args:
        llm_client: for each policy verl's client for its servers, or the endpoint that it is.
    """

    def __init__(self, config: Any, llm_client: dict[str, Any], *args: Any) -> None:
        super().__init__(config, llm_client, *args)
        self.parts = load_parts(config, llm_client)
        marl, team = marl_section(config), team_of(config)
        self.ways = load_ways(marl, team)
        self.learning = {name for name, policy in team.policies.items() if policy.trained}
        self.joint = JointEncoder.of(config, self.parts.scene.agents)
        self.observers = plugins.load().hook
        self._reports: dict[str, asyncio.Future[Report]] = {}
        self._rows: dict[str, list[Row]] = {}
        # the asynchronous schedule hears of single tasks, and holds requests while a policy's weights change
        self._streams = marl["schedule"]["mode"] == "async"
        self._finished: asyncio.Queue[str] = asyncio.Queue()
        self._gates = {name: Gate() for name in self.learning} if self._streams else {}
        self._logged: set[tuple[str, str]] = set()

    def plugin_fingerprint(self) -> tuple[str, ...]:
        """The plugin set of this process: the driver compares it with its own."""
        return plugins.load().fingerprint()

    async def collect(self, uids: list[str]) -> list[Report]:
        """Wait for these tasks, write their rows and mark them finished, and tell what became of them.

        Rows go to TransferQueue in two calls, whose cost is in the calls more than in the rows: those that somebody
        learns from with their tensors, then the others as tags alone, together with the tasks' own status.
        """
        reports = [await self._report(uid) for uid in uids]
        training = [uid for uid in uids if uid in self._rows]  # a validation writes no rows
        rows = [row for uid in training for row in self._rows.pop(uid)]
        for uid in uids:
            del self._reports[uid]
        learnt = [row for row in rows if row.fields is not None]
        if learnt:
            fields = list_of_dict_to_tensordict([row.fields for row in learnt])
            keys, tags = [row.key for row in learnt], [row.tag for row in learnt]
            await tq.async_kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=tags)
        if training:  # from here on the replay buffer takes the tasks, also one whose episodes all failed
            others = [row for row in rows if row.fields is None]
            keys = [*(row.key for row in others), *training]
            tags = [*(row.tag for row in others), *({"status": "finished"} for _ in training)]
            await tq.async_kv_batch_put(keys=keys, partition_id="train", tags=tags)
        return reports

    async def finished(self) -> list[Done]:
        """Wait until a task of training is finished, and `collect` all that are. One call at a time."""
        uids = [await self._finished.get()]
        while not self._finished.empty():
            uids.append(self._finished.get_nowait())
        rows = [self._rows.get(uid, []) for uid in uids]  # none where the sampler itself failed
        reports = await self.collect(uids)
        return [
            Done(report, [row.key for row in its], [row.tag for row in its])
            for report, its in zip(reports, rows, strict=True)
        ]

    async def close_gate(self, policy: str) -> None:
        """See `Gate.close`."""
        await self._gates[policy].close()

    async def open_gate(self, policy: str) -> None:
        """See `Gate.open`."""
        self._gates[policy].open()

    def _report(self, uid: str) -> asyncio.Future[Report]:
        if uid not in self._reports:
            self._reports[uid] = asyncio.get_running_loop().create_future()
        return self._reports[uid]

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        """Sample one task and write its rows; every outcome, also a failure of our own, becomes a report."""
        report = Report(uid=str(prompt["uid"]), task=str(prompt["task"]))
        try:
            await self._report_on(prompt, sampling_params, trajectory, report)
        except Exception as error:
            logger.exception("sampling task %s failed", report.task)
            report.error = f"{type(error).__name__}: {error}"
        self._report(report.uid).set_result(report)
        if self._streams and not trajectory["validate"]:
            self._finished.put_nowait(report.uid)

    async def _report_on(self, prompt: dict, sampling_params: dict, trajectory: dict, report: Report) -> None:
        task, uid = Task(**json.loads(prompt["task"])), report.uid
        report.task = task.id
        validate, step = bool(trajectory["validate"]), int(trajectory["step"])
        # verl's parameters are those of validation; in training each policy, and each agent, has its own
        held_out = sampling_params if validate and not prompt.get("sampled", False) else None
        marl = self.config.marl
        if not validate:
            sampler, sessions = self.ways.training, int(marl.sampler.sessions)
        elif held_out is None:
            sampler, sessions = self.ways.held_out, int(marl.validation.sessions)
        else:
            sampler, sessions = self.ways.greedy, 1
        rollouts = TaskRollouts(self.parts, task, uid, step, sessions, held_out, self._gates)
        sample = await sampler.sample(rollouts)
        if not validate and isinstance(self.ways.credit, ReplayCredit):
            await with_credit(self.ways.credit, rollouts, sample)
        self._fill(report, sample)
        # failures are stored in any case: nobody should have to run it again to see what went wrong
        stored = sample if prompt["keep"] else Sample(failures=sample.failures)
        report.lines = sample_lines(stored, uid, task.id, tokens=bool(marl.run.journal_tokens))
        if not validate:
            for metric in self.ways.metrics:
                report.metrics.update(metric.of_sample(sample))
            self._rows[uid] = turn_rows(sample.turns, step, self.learning)
            if self.joint is not None:
                add_joint_observations(self._rows[uid], sample.episodes, self.joint)

    def _fill(self, report: Report, sample: Sample) -> None:
        report.failures, report.attempts, report.extra_tokens = sample.failures, sample.attempts, sample.extra_tokens
        for failure in sample.failures:
            kind = failure.reason, failure.trace.rstrip().rpartition("\n")[2]
            if failure.trace and kind not in self._logged and len(self._logged) < LOGGED:
                self._logged.add(kind)
                logger.warning("%s: %s\n%s", failure.reason, failure.detail, failure.trace)
        for episode in sample.episodes:
            try:
                self.observers.marl_episode_finished(episode=episode)
            except Exception as error:
                raise MarlError(f"hook marl_episode_finished failed: {type(error).__name__}: {error}") from error
            report.successes.append(episode.success)
            report.rewards.append(_mean_rewards(episode))


def _mean_rewards(episode: Episode) -> dict[str, dict[str, float]]:
    """Agent -> component -> its mean over the agent's turns in the episode."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in episode.turns:
        for component, value in turn.components.items():
            values.setdefault(turn.agent, {}).setdefault(component, []).append(value)
    return {
        agent: {component: sum(column) / len(column) for component, column in components.items()}
        for agent, components in values.items()
    }


TeamRolloutWorker = ray.remote(_TeamRolloutWorker)
