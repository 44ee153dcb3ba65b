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
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from marl_verl import plugins
from marl_verl.episode import Episode
from marl_verl.options import build
from marl_verl.parts import algorithm_of
from marl_verl.rollout.client import PolicyClient
from marl_verl.rollout.rollouts import TaskRollouts, TeamParts
from marl_verl.rollout.rows import episode_rows
from marl_verl.rollout.samples import episode_sample
from marl_verl.sampling import Failure, Sample, Sampler
from marl_verl.tasks.base import Task
from marl_verl.team import Team, read_team

logger = logging.getLogger(__name__)


@dataclass
class Report:
    """What became of one task: what the driver needs to know beyond the rows."""

    uid: str
    task: str
    successes: list[bool] = field(default_factory=list)
    rewards: list[dict[str, dict[str, float]]] = field(default_factory=list)  # an episode: agent -> component -> mean
    failures: list[Failure] = field(default_factory=list)
    kept: list[dict[str, Any]] = field(default_factory=list)  # episodes as JSON
    error: str | None = None  # the sampler itself failed


def load_parts(config: Any, llm_clients: dict[str, Any]) -> tuple[TeamParts, Sampler]:
    """Load everything the team's config names, in this process."""
    marl: Any = OmegaConf.to_container(config.marl, resolve=True)
    team: Team = read_team(marl)
    known = plugins.load()
    algorithm = algorithm_of(team)
    sampler = build(known.get("samplers", algorithm.sampler), marl["sampler"]["options"], "marl.sampler.options")
    template = config.data.get("apply_chat_template_kwargs") or {}
    parts = TeamParts(
        team=team,
        workflow=build(known.get("workflows", team.workflow.name), team.workflow.options, "marl.workflow.options"),
        tasks=build(known.get("tasks", team.task.name), team.task.options, "marl.task.options"),
        rewards={agent.reward: known.get("rewards", agent.reward) for agent in team.agents.values() if agent.reward},
        clients={name: PolicyClient(name, config.policies[name], llm_clients[name], template) for name in llm_clients},
        seed=int(marl["run"]["seed"]),
        act_seconds=float(marl["rollout"]["act_seconds"]),
        outcome=algorithm.advantage.outcome,
    )
    return parts, sampler


class _TeamRolloutWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """verl unpacks a batch into prompts and starts a background task for each; from there it is ours.

    Args:
        llm_client: verl's client for each policy, by name.
    """

    def __init__(self, config: Any, llm_client: dict[str, Any], *args: Any) -> None:
        super().__init__(config, llm_client, *args)
        self.parts, self.sampler = load_parts(config, llm_client)
        self.observers = plugins.load().hook
        self._reports: dict[str, asyncio.Future[Report]] = {}
        self._rows: dict[str, list[Any]] = {}

    def plugin_fingerprint(self) -> tuple[str, ...]:
        """The plugin set of this process: the driver compares it with its own."""
        return plugins.load().fingerprint()

    async def collect(self, uids: list[str]) -> list[Report]:
        """Wait for these tasks, write their rows and mark them finished, and tell what became of them.

        All rows go to TransferQueue in one call: its cost is in the calls more than in the rows.
        """
        reports = [await self._report(uid) for uid in uids]
        training = [uid for uid in uids if uid in self._rows]  # a validation writes no rows
        rows = [row for uid in training for row in self._rows.pop(uid)]
        for uid in uids:
            del self._reports[uid]
        if rows:
            keys, fields, tags = zip(*rows, strict=True)
            await tq.async_kv_batch_put(
                keys=list(keys), partition_id="train", fields=list_of_dict_to_tensordict(list(fields)), tags=list(tags)
            )
        if training:  # from here on the replay buffer takes the tasks, also one whose episodes all failed
            tags = tuple({"status": "finished"} for _ in training)
            await tq.async_kv_batch_put(keys=training, partition_id="train", tags=list(tags))
        return reports

    def _report(self, uid: str) -> asyncio.Future[Report]:
        if uid not in self._reports:
            self._reports[uid] = asyncio.get_running_loop().create_future()
        return self._reports[uid]

    async def _run_prompt(self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False) -> None:
        """Sample one task and write its rows; every outcome, also a failure of our own, becomes a report."""
        uid = str(prompt["uid"])
        task = Task(**json.loads(prompt["task"]))
        report = Report(uid=uid, task=task.id)
        validate, step = bool(trajectory["validate"]), int(trajectory["step"])
        # verl's parameters are those of validation; in training each policy, and each agent, has its own
        held_out = sampling_params if validate and not prompt.get("sampled", False) else None
        sessions = 1 if validate else int(self.config.marl.sampler.sessions)
        rollouts = TaskRollouts(self.parts, task, uid, step, sessions, held_out)
        try:
            sample = await self.sampler.sample(rollouts)
            self._fill(report, sample, keep=bool(prompt.get("keep", False)))
            if not validate:
                self._rows[uid] = [row for episode in sample.episodes for row in episode_rows(episode, step)]
        except Exception as error:
            logger.exception("sampling task %s failed", task.id)
            report.error = f"{type(error).__name__}: {error}"
        self._report(uid).set_result(report)

    def _fill(self, report: Report, sample: Sample, keep: bool) -> None:
        report.failures = sample.failures
        for episode in sample.episodes:
            self.observers.marl_episode_finished(episode=episode)
            report.successes.append(episode.success)
            report.rewards.append(_mean_rewards(episode))
        if keep:
            report.kept = [episode_sample(episode) for episode in sample.episodes[:1]]


def _mean_rewards(episode: Episode) -> dict[str, dict[str, float]]:
    """Agent -> component -> its mean over the agent's turns in the episode."""
    values: dict[str, dict[str, list[float]]] = {}
    for turn in episode.turns:
        for component, value in turn.rewards.items():
            values.setdefault(turn.agent, {}).setdefault(component, []).append(value)
    return {
        agent: {component: sum(column) / len(column) for component, column in components.items()}
        for agent, components in values.items()
    }


TeamRolloutWorker = ray.remote(_TeamRolloutWorker)
