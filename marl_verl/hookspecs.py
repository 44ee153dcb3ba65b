"""The hooks a plugin can implement: fourteen to register parts by name, two to watch a run.

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

__all__ = ["KINDS", "Register", "hookimpl"]

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
    "mixes": "reward mix",
    "returns": "return",
    "groups": "group",
    "baselines": "baseline",
    "scales": "scale",
    "advantages": "advantage",
    "losses": "loss",
    "metrics": "metric",
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

    They may be async. In a sampled tree the episode is what the path has come to so far.

    Example::

        from marl_verl.hookspecs import hookimpl

        def short(task, turn, episode):
            return 1.0 if turn.action.length <= 32 else 0.0

        @hookimpl
        def marl_register_rewards(register):
            register("short", short)
    """


@hookspec
def marl_register_samplers(register: Register) -> None:
    """Register samplers: subclasses of `Sampler`, whose async `sample(rollouts)` drives a workflow for one task.

    Example::

        from marl_verl.hookspecs import hookimpl
        from marl_verl.sampling import Sample, Sampler, ask, attempt, drive, scored

        class Until(Sampler):
            '''One session after the other, until one reaches `enough`.'''
            enough: float = 1.0

            async def sample(self, rollouts):
                found = Sample()
                for session in range(rollouts.sessions):
                    episode = await attempt(rollouts, session, self.play(rollouts, session))
                    if hasattr(episode, "reason"):
                        found.failures.append(episode)
                        continue
                    found.episodes.append(episode)
                    if episode.score >= self.enough:
                        break
                return found

            async def play(self, rollouts, session):
                async with rollouts.start(session) as run:
                    await drive(run, lambda act: ask(rollouts, act, session))
                    return await scored(rollouts, rollouts.finish(run, session))

        @hookimpl
        def marl_register_samplers(register):
            register("until", Until)
    """


@hookspec
def marl_register_credits(register: Register) -> None:
    """Register credit schemes: what says how much of an episode's reward one agent's turn earned.

    A credit that the rows of a batch suffice for is a frozen dataclass on `TableCredit`; one that replays episodes, on
    `ReplayCredit`.

    Example::

        from dataclasses import dataclass

        from marl_verl.credit import TableCredit
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class PerToken(TableCredit):
            '''credit = team / tokens of the response.'''

            def reads(self):
                return ("team",)                # credit takes the place of team in the sum of components

            def compute(self, table):
                return table.component("team") / table.length

        @hookimpl
        def marl_register_credits(register):
            register("per-token", PerToken)
    """


@hookspec
def marl_register_mixes(register: Register) -> None:
    """Register reward mixes: frozen dataclasses whose `compute(table)` makes one reward of a row's components.

    Example::

        from dataclasses import dataclass

        from marl_verl.advantage import RewardMix
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Gated(RewardMix):
            '''r = team * role: the team's success counts only for who did its part.'''

            def compute(self, table):
                return table.component("team") * table.component("role")

        @hookimpl
        def marl_register_mixes(register):
            register("gated", Gated)
    """


@hookspec
def marl_register_returns(register: Register) -> None:
    """Register returns: frozen dataclasses whose `compute(table, reward)` says what rewards are worth to a turn.

    Example::

        from dataclasses import dataclass

        import numpy as np

        from marl_verl.advantage import Returns
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class LengthDiscounted(Returns):
            '''R = gamma^length * r: a reward is worth less after a long response.'''

            gamma: float = 0.999

            def compute(self, table, reward):
                return reward * np.power(self.gamma, table.length)

        @hookimpl
        def marl_register_returns(register):
            register("length-discounted", LengthDiscounted)
    """


@hookspec
def marl_register_groups(register: Register) -> None:
    """Register groups: names for tuples of columns, so that `group: by-policy` serves for the list.

    Example::

        from marl_verl.hookspecs import hookimpl

        @hookimpl
        def marl_register_groups(register):
            register("by-policy", ("uid", "policy"))
    """


@hookspec
def marl_register_baselines(register: Register) -> None:
    """Register baselines: frozen dataclasses whose `compute(value, group)` gives what each sample is compared with.

    Example::

        from dataclasses import dataclass

        import numpy as np

        from marl_verl.advantage import Baseline
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Worst(Baseline):
            '''b = min of the group's returns: nobody is pushed down.'''

            def compute(self, value, group):
                low = np.full(group.max() + 1, np.inf)
                np.minimum.at(low, group, value)
                return low[group]

        @hookimpl
        def marl_register_baselines(register):
            register("worst", Worst)
    """


@hookspec
def marl_register_scales(register: Register) -> None:
    """Register scales: frozen dataclasses whose `compute(value, group)` gives the spread of each group of returns.

    Example::

        from dataclasses import dataclass

        import numpy as np

        from marl_verl.advantage import Scale
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Range(Scale):
            '''sigma = max - min of the group's returns.'''

            def compute(self, value, group):
                low, high = np.full(group.max() + 1, np.inf), np.full(group.max() + 1, -np.inf)
                np.minimum.at(low, group, value)
                np.maximum.at(high, group, value)
                return high - low

        @hookimpl
        def marl_register_scales(register):
            register("range", Range)
    """


@hookspec
def marl_register_advantages(register: Register) -> None:
    """Register estimators: objects whose `compute(table, reward)` gives one advantage per row of a row table.

    A composition of the parts in `marl_verl.advantage` (an `Advantage`) is one; so is any frozen dataclass on
    `Estimator` with that method.

    Example::

        from dataclasses import dataclass

        import numpy as np

        from marl_verl.advantage import Advantage, Advantages, Estimator
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Centred(Estimator):
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
    """Register losses: one of verl's registered policy losses by name, with the settings of verl's that belong to it.

    `actor` goes over `actor_rollout_ref.actor`, `correction` over `algorithm.rollout_correction`; see
    `marl_verl.losses.Loss`. A loss of your own is first registered with verl, in a module that
    `actor_rollout_ref.model.external_lib` names, so that verl's workers import it.

    Example::

        from marl_verl.hookspecs import hookimpl
        from marl_verl.losses import Loss

        @hookimpl
        def marl_register_losses(register):
            # REINFORCE, the sum over all tokens of a batch: good for one optimiser update
            register("reinforce-sum", Loss(
                actor={"policy_loss": {"loss_mode": "gpg"}, "loss_agg_mode": "token-sum"}, one_update=True))
    """


@hookspec
def marl_register_metrics(register: Register) -> None:
    """Register metrics: frozen dataclasses on `Metric`, of a step's rows or of what was sampled for one task.

    A run computes those that its algorithm names, or `marl.algorithm.options.metrics`.

    Example::

        from dataclasses import dataclass

        from marl_verl.advantage import Metric
        from marl_verl.hookspecs import hookimpl

        @dataclass(frozen=True)
        class Opinions(Metric):
            '''How many different answers the team had to a task.'''

            def of_sample(self, sample):
                return {"team/opinions": float(len({str(episode.answer) for episode in sample.episodes}))}

        @hookimpl
        def marl_register_metrics(register):
            register("opinions", Opinions())
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
            curve.append((step, metrics["train/success"]))
    """
