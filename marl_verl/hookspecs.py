"""The hooks a plugin can implement: eight to register parts by name, two to watch a run.

A plugin is a module, a class (instantiated without arguments) or an instance whose functions carry `@hookimpl`. A
distribution offers it under the entry-point group `marl_verl`::

    [project.entry-points.marl_verl]
    my-plugin = "my_package.plugin"

Every registering hook receives `register(name, target)`. The target is the object itself, or
"package.module:attribute", which is imported when a run first uses the name: then listing plugins stays fast and
imports no torch. Each example below is a whole plugin file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from marl_verl.episode.turn import Episode

PROJECT = "marl_verl"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Register = Callable[[str, object], None]

# What can be registered, and how one of them is called in a sentence.
KINDS: Mapping[str, str] = {
    "tasks": "task",
    "workflows": "workflow",
    "rewards": "reward",
    "samplers": "sampler",
    "credits": "credit",
    "advantages": "advantage",
    "losses": "loss",
    "algorithms": "algorithm",
}


@hookspec
def marl_register_tasks(register: Register) -> None:
    """Register task sets: subclasses of `TaskSet`, which make tasks and score answers.

    Example::

        from marl_verl.hookspecs import hookimpl
        from marl_verl.tasks.base import Task, TaskSet

        class Sums(TaskSet):
            largest: int = 9

            def generate(self, split, count, seed):
                offset = 0 if split == "train" else 1
                pairs = [(n % self.largest, (2 * n + offset) % self.largest) for n in range(count)]
                return [Task(f"{a}+{b}", f"What is {a} + {b}?", {"sum": a + b}) for a, b in pairs]

            def score(self, task, answer):
                return float(str(answer).strip() == str(task.data["sum"]))

        @hookimpl
        def marl_register_tasks(register):
            register("sums", Sums)
    """


@hookspec
def marl_register_workflows(register: Register) -> None:
    """Register workflows: subclasses of `Workflow`, whose async `run(task, team)` returns the team's answer.

    Example::

        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_workflows(register):
            register("debate", "my_package.workflows:Debate")      # imported when a run uses it
    """


@hookspec
def marl_register_rewards(register: Register) -> None:
    """Register role rewards: functions (task, turn, episode) -> float that fill component `role` of an agent's turns.

    Example::

        from marl_verl.hookspecs import hookimpl

        def short(task, turn, episode):
            return 1.0 if len(turn.action.response_ids) <= 32 else 0.0

        @hookimpl
        def marl_register_rewards(register):
            register("short", short)
    """


@hookspec
def marl_register_samplers(register: Register) -> None:
    """Register samplers: subclasses of `Sampler`, whose async `sample(rollouts)` drives a workflow for one task.

    Example::

        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_samplers(register):
            register("greedy-tree", "my_package.sampling:GreedyTree")
    """


@hookspec
def marl_register_credits(register: Register) -> None:
    """Register credit schemes: what says how much of an episode's reward one agent's turn earned.

    Example::

        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_credits(register):
            register("leave-one-out", "my_package.credit:LeaveOneOut")
    """


@hookspec
def marl_register_advantages(register: Register) -> None:
    """Register estimators: objects whose `compute(table, reward)` gives one advantage per row of a row table.

    A composition of the parts in `marl_verl.advantage` (an `Advantage`) is one; so is any frozen dataclass with that
    method.

    Example::

        from dataclasses import dataclass

        import numpy as np

        from marl_verl.advantage import Advantage, Advantages
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Centred:
            '''A = r - mean of the batch: every row against all rows.'''

            def compute(self, table, reward):
                n = len(table)
                mean, everyone = np.full(n, reward.mean()), np.zeros(n, dtype=np.int64)
                return Advantages.of(ret=reward, reward=reward, baseline=mean, scale=np.ones(n),
                                     group=everyone, sample=np.arange(n), group_by=())

        @hookimpl
        def marl_register_advantages(register):
            register("centred", Centred())
            register("per-role", Advantage(group=("uid", "agent"), singleton="raw"))
    """


@hookspec
def marl_register_losses(register: Register) -> None:
    """Register losses: names for one of verl's registered policy losses with its settings.

    Example::

        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_losses(register):
            register("reinforce-sum", "my_package.losses:ReinforceSum")
    """


@hookspec
def marl_register_algorithms(register: Register) -> None:
    """Register algorithms: an `Algorithm` says in five names how to sample, reward, credit, compare and update.

    Example::

        from marl_verl.advantage import Advantage, Algorithm, Mix
        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_algorithms(register):
            register("role-grpo", Algorithm(
                sampler="independent",
                rewards=Mix(team=1.0, role=0.5),
                credit="none",
                advantage=Advantage(group=("uid", "agent"), singleton="zero"),
                loss="ppo-clip",
            ))
    """


@hookspec
def marl_episode_finished(episode: Episode) -> None:
    """Watch episodes: called in the rollout worker's process when an episode has been sampled and scored.

    Example::

        from marl_verl.hookspecs import hookimpl

        lengths = []

        @hookimpl
        def marl_episode_finished(episode):
            lengths.append(len(episode.turns))
    """


@hookspec
def marl_step_finished(step: int, metrics: Mapping[str, Any]) -> None:
    """Watch training: called in the driver's process after each step, with the step's metrics.

    Example::

        from marl_verl.hookspecs import hookimpl

        curve = []

        @hookimpl
        def marl_step_finished(step, metrics):
            curve.append((step, metrics["team/success"]))
    """
