"""The checks of a config that need neither tasks nor models."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig

from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.sampling import Sampler
from marl_verl.config import checks, fit
from marl_verl.config.parts import algorithm_of, part, sampler_names, samplers_of
from marl_verl.config.placement import check_placement
from marl_verl.config.stored import marl_section
from marl_verl.config.task_choice import check_task_choice
from marl_verl.episode import Workflow
from marl_verl.extensions import check_run_options
from marl_verl.options import build
from marl_verl.run import private_network
from marl_verl.run.trackers import check_trackers
from marl_verl.tasks.base import TaskSet
from marl_verl.team import TeamConfig, read_team


@dataclass
class Parts:
    """What a config names: team, algorithm, samplers by section, workflow and task set."""

    team: TeamConfig
    algorithm: Algorithm
    samplers: dict[str, Sampler]
    workflow: Workflow
    task_set: TaskSet


def check_settings(config: DictConfig) -> Parts:
    """Check all values of a config, without tasks and models, in milliseconds. MarlError for the first invalid one."""
    marl = marl_section(config)
    team = read_team(marl)
    checks.check_validation(config)
    private_network.check(config, team)
    check_run_options(marl["run"])
    algorithm = algorithm_of(team)
    check_task_choice(config, algorithm)
    samplers = samplers_of(algorithm, marl)
    workflow, task_set = build_parts(team)
    fit.check_replays(workflow, samplers, sampler_names(algorithm, marl), team, algorithm)
    fit.check_samplers(samplers, sampler_names(algorithm, marl), team, task_set)
    fit.check_sides(samplers, sampler_names(algorithm, marl), algorithm, team, task_set)
    check_trackers(config)
    check_placement(config, team)
    checks.check_sampling(config, team)
    fit.check_fit(samplers["sampler"], algorithm, team)
    return Parts(team, algorithm, samplers, workflow, task_set)


def build_parts(team: TeamConfig) -> tuple[Workflow, TaskSet]:
    """Build the workflow and the task set of a team. MarlError for an unregistered part or an invalid option."""
    for agent in team.agents.values():
        if agent.reward is not None:
            part("rewards", agent.reward, None)
    task_set = build(part("tasks", team.task.name, TaskSet), team.task.options, "marl.task.options")
    workflow = part("workflows", team.workflow.name, Workflow)
    return build(workflow, team.workflow.options, "marl.workflow.options"), task_set
