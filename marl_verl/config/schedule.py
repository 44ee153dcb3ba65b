"""The schedule of sampling and training (`marl.schedule`): its settings, and checks for incompatible ones.

With `mode: async` each policy is trained when its buffer is full, on rows that may be older than its weights. Then the
advantage of a task's rows must not depend on other tasks, and the loss must use the sampling probabilities pi_rollout:
either as a weight min(pi_old / pi_rollout, c), truncated importance sampling with pi_old of the weights at the start of
the update, or in the ratio itself, pi / pi_rollout (`bypass_mode`).
"""

from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.fit import SyntheticTeam
from marl_verl.config.parts import loss_named
from marl_verl.config.schema import Curriculum, Filter, Schedule
from marl_verl.errors import check, unknown, user_error
from marl_verl.extensions import states
from marl_verl.options import build
from marl_verl.team import TeamConfig

WHERE, FILTER, CURRICULUM = "marl.schedule", "marl.sampler.filter", "marl.data.curriculum"
T = TypeVar("T")


def settings_of(config: DictConfig) -> Schedule:
    """The `marl.schedule` section of a config."""
    return _built(Schedule, config, WHERE) or Schedule()


def filter_of(config: DictConfig) -> Filter | None:
    """The filter of a config, None without one."""
    settings = _built(Filter, config, FILTER)
    return settings if settings is not None and settings.no_variance else None


def curriculum_of(config: DictConfig) -> Curriculum | None:
    """The curriculum of a config, None without one."""
    return _built(Curriculum, config, CURRICULUM)


def _built(kind: type[T], config: DictConfig, key: str) -> T | None:
    section: Any = OmegaConf.select(config, key)
    options: Any = None if section is None else OmegaConf.to_container(section, resolve=True)
    return None if section is None else build(kind, options, key)


@check
def check_schedule(
    config: DictConfig, team: TeamConfig, algorithm: Algorithm, synthetic: SyntheticTeam
) -> Iterator[str]:
    """MarlError if `marl.schedule` is incompatible with the run; `config` is resolved, with `policies`."""
    settings, needs = settings_of(config), f"needs {WHERE}.mode=sync"
    trained = [name for name, policy in team.policies.items() if policy.trained]
    if settings.turns is not None:
        named = [name for turn in settings.turns for name in turn]
        for name in named:
            if name not in trained:
                yield str(unknown("trained policy", name, trained)) + f" ('{WHERE}.turns')"
        if never := [name for name in trained if name not in named]:
            yield f"policy '{never[0]}' has no turn in '{WHERE}.turns', so that it never learns: add it, or freeze it"
        if settings.mode == "async":
            yield f"'{WHERE}.turns' {needs}: with async each policy learns when its buffer is full"
    if settings.mode == "sync":
        return
    if algorithm.advantage.remembers:
        yield f"advantage '{algorithm.advantage.name}' depends on earlier steps, which overlap with async: it {needs}"
    if algorithm.advantage.wants_critic():
        yield f"{WHERE}.mode=async does not train a critic, but algorithm '{team.algorithm.name}' has one: it {needs}"
    if team.sharing:
        problem = f"'marl.policies.{team.sharing[0]}.base=shared' {needs}"
        yield f"{problem}: one policy's weights cannot change while others on its servers are sampling"
    for name in states(config.marl.run):
        yield f"'marl.run.{name}' {needs}: it passes on what episodes of a step write, and with async steps overlap"
    for past in team.past.values():
        yield f"'{past.kind}' of an agent {needs}: tasks in flight would meet different snapshots"
    for name in trained:
        policy = team.policies[name]
        others = [other for other in team.policies if other != name and team.policies[other].pool == policy.pool]
        if policy.pool is not None and others:
            fact = f"policies '{name}' and '{others[0]}' share pool '{policy.pool}', where all servers sleep while one"
            yield f"{fact} policy learns: with {WHERE}.mode=async give each a separate pool, or use mode=sync"
        section = config.policies[name]
        yield from _loss_problems(section, name, policy.loss or algorithm.loss)
        # the rows of an update are split equally among the GPUs that train
        gpus = int(section.trainer.n_gpus_per_node) * int(section.trainer.nnodes)
        ranks = gpus // int(section.actor_rollout_ref.actor.get("ulysses_sequence_parallel_size") or 1)
        if (settings.batch or 0) % ranks:
            problem = f"'{WHERE}.batch' is {settings.batch}, which does not divide among the {ranks} ranks of policy"
            yield f"{problem} '{name}' ({gpus} GPUs): make it a multiple of {ranks}"
    yield from _dependences(synthetic)


def _loss_problems(section: DictConfig, policy: str, name: str) -> Iterator[str]:
    """Whether a policy's loss corrects for rows that older weights sampled."""
    where = f"marl.policies.{policy}.loss"
    if loss_named(name).one_update:
        problem = f"loss '{name}' of policy '{policy}' is valid only for rows that the current weights sampled"
        yield f"{problem}, but with {WHERE}.mode=async rows are older: use {where}=ppo-clip-tis, or mode=sync"
    correction = section.algorithm.rollout_correction
    if not correction.rollout_is and not correction.bypass_mode:
        corrected = "gspo-tis" if name == "gspo" else "ppo-clip-tis"
        problem = f"with {WHERE}.mode=async rows are older than the weights trained on them"
        remedy = f"use {where}={corrected} (or marl.algorithm.options.loss for all), or"
        remedy = f"{remedy} algorithm.rollout_correction.bypass_mode=true"
        yield f"{problem}, but loss '{name}' of policy '{policy}' does not correct for that: {remedy}"


def _dependences(synthetic: SyntheticTeam) -> Iterator[str]:
    """Whether synthetic rows of three tasks get the same advantages together as each task alone."""
    compute, table = synthetic.algorithm.compute, synthetic.table
    # groups of several sizes, also of one row
    tasks = [synthetic.turns(number, episodes) for number, episodes in enumerate((None, 2, 1))]
    prefix = f"algorithm '{synthetic.team.algorithm.name}' is incompatible with {WHERE}.mode=async"
    with user_error(prefix):
        together = compute(table([turn for turns in tasks for turn in turns])).advantage
        apart = np.concatenate([compute(table(turns)).advantage for turns in tasks])
    if not np.allclose(together, apart, rtol=1e-9, atol=1e-12):
        problem = "it compares rows of different tasks (group, scale_group or singleton over the batch)"
        yield f"{prefix}: {problem}, but with async a row's advantage is computed when its own task is finished"


@check
def check_task_choice(config: DictConfig, algorithm: Algorithm) -> Iterator[str]:
    """MarlError for an invalid filter or curriculum, or one that the algorithm or the schedule does not allow."""
    if filter_of(config) is not None and algorithm.advantage.wants_critic() is not None:
        problem = f"'{FILTER}' has no effect, because the advantages come from a critic: no group is compared"
        yield f"{problem}. Set {FILTER}=null, or choose an algorithm without a critic, e.g. grpo."
    if curriculum_of(config) is not None and config.marl.schedule.mode == "async":
        why = "the tasks of a batch would depend on which episodes finish first"
        yield f"'{CURRICULUM}' requires marl.schedule.mode=sync: with async {why}"
