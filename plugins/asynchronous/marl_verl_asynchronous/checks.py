"""The entry point of `marl.schedule.mode=async`, and what it is incompatible with (docs/schedules.md).

Rows may be older than the weights: the loss must correct for that, and the advantages of a task's rows must not depend
on other tasks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from omegaconf import DictConfig

from marl_verl.algo.algorithms import Algorithm, Loss
from marl_verl.algo.sampling import Sampler
from marl_verl.config.fit import SyntheticTeam
from marl_verl.config.parts import loss_of
from marl_verl.config.schema import CURRICULUM, SCHEDULE, marl_of
from marl_verl.config.stored import is_local
from marl_verl.errors import user_error
from marl_verl.extensions import states
from marl_verl.team import TeamConfig
from marl_verl_asynchronous.gate import Gate as Gate


def schedule(trainer: Any) -> Any:
    """The schedule of a `Trainer`."""
    from marl_verl_asynchronous.schedule import Asynchronous  # with torch

    if is_local(trainer.config):
        return Asynchronous(trainer, trainer.rollouts)
    from marl_verl_asynchronous.stream import Stream

    return Asynchronous(trainer, Stream(trainer.rollouts.workers))


def problems(config: DictConfig, team: TeamConfig, algorithm: Algorithm, synthetic: SyntheticTeam) -> Iterator[str]:
    """What a run has that is incompatible; `config` is resolved, with `policies`."""
    settings, needs = marl_of(config).schedule, f"needs {SCHEDULE}.mode=sync"
    if settings.turns is not None:
        yield f"'{SCHEDULE}.turns' {needs}: with async each policy learns when its buffer is full"
    if marl_of(config).data.curriculum is not None:
        why = "the tasks of a batch would depend on which episodes finish first"
        yield f"'{CURRICULUM}' requires {SCHEDULE}.mode=sync: with async {why}"
    if algorithm.advantage.remembers:
        yield f"advantage '{algorithm.advantage.name}' depends on earlier steps, which overlap with async: it {needs}"
    if type(synthetic.sampler).shared is not Sampler.shared:
        yield f"sampler '{algorithm.sampler}' {needs}: with async a policy's buffer has its own rows only"
    if algorithm.advantage.wants_critic():
        problem = f"{SCHEDULE}.mode=async does not train a critic, but algorithm '{team.algorithm.name}' has one"
        yield f"{problem}: it {needs}"
    if team.sharing:
        problem = f"'marl.policies.{team.sharing[0]}.base=shared' {needs}"
        yield f"{problem}: one policy's weights cannot change while others on its servers are sampling"
    for name in states(config.marl.run):
        yield f"'marl.run.{name}' {needs}: it passes on what episodes of a step write, and with async steps overlap"
    for past in team.past.values():
        yield f"'{past.kind}' of an agent {needs}: tasks in flight would meet different snapshots"
    for name in team.trained:
        policy = team.policies[name]
        others = [other for other in team.policies if other != name and team.policies[other].pool == policy.pool]
        if policy.pool is not None and others:
            fact = f"policies '{name}' and '{others[0]}' share pool '{policy.pool}', where all servers sleep while one"
            yield f"{fact} policy learns: with {SCHEDULE}.mode=async give each a separate pool, or use mode=sync"
        section = config.policies[name]
        optim = section.actor_rollout_ref.actor.optim
        warmup = optim.lr_warmup_steps_ratio if optim.lr_warmup_steps in (None, -1) else 0.0
        if warmup or optim.lr_scheduler_type != "constant":
            fact = f"the learning rate of policy '{name}' depends on how many updates it will have, which is not known"
            yield f"{fact}: with {SCHEDULE}.mode=async use lr_scheduler_type=constant and lr_warmup_steps"
        yield from _loss_problems(section, name, *loss_of(team, name))
        # the rows of an update are split equally among the GPUs that train
        gpus = int(section.trainer.n_gpus_per_node) * int(section.trainer.nnodes)
        ranks = gpus // int(section.actor_rollout_ref.actor.get("ulysses_sequence_parallel_size") or 1)
        if (settings.batch or 0) % ranks:
            problem = f"'{SCHEDULE}.batch' is {settings.batch}, which does not divide among the {ranks} ranks of policy"
            yield f"{problem} '{name}' ({gpus} GPUs): make it a multiple of {ranks}"
    yield from _dependences(synthetic)


def _loss_problems(section: DictConfig, policy: str, name: str, loss: Loss) -> Iterator[str]:
    """Whether a policy's loss corrects for rows that older weights sampled."""
    where = f"marl.policies.{policy}.loss"
    if loss.one_update:
        problem = f"loss '{name}' of policy '{policy}' is valid only for rows that the current weights sampled"
        yield f"{problem}, but with {SCHEDULE}.mode=async rows are older: use {where}=ppo-clip-tis, or mode=sync"
    correction = section.algorithm.rollout_correction
    if not correction.rollout_is and not correction.bypass_mode:
        corrected = "gspo-tis" if name == "gspo" else "ppo-clip-tis"
        problem = f"with {SCHEDULE}.mode=async rows are older than the weights trained on them"
        remedy = f"use {where}={corrected} (or marl.algorithm.options.loss for all), or"
        remedy = f"{remedy} algorithm.rollout_correction.bypass_mode=true"
        yield f"{problem}, but loss '{name}' of policy '{policy}' does not correct for that: {remedy}"


def _dependences(synthetic: SyntheticTeam) -> Iterator[str]:
    """Whether synthetic rows of three tasks get the same advantages together as each task alone."""
    compute, table = synthetic.algorithm.compute, synthetic.table
    # groups of several sizes, also of one row
    tasks = [synthetic.turns(number, episodes) for number, episodes in enumerate((None, 2, 1))]
    prefix = f"algorithm '{synthetic.team.algorithm.name}' is incompatible with {SCHEDULE}.mode=async"
    with user_error(prefix):
        together = compute(table([turn for turns in tasks for turn in turns])).advantage
        apart = np.concatenate([compute(table(turns)).advantage for turns in tasks])
    if not np.allclose(together, apart, rtol=1e-9, atol=1e-12):
        problem = "it compares rows of different tasks (group, scale_group or singleton over the batch)"
        yield f"{prefix}: {problem}, but with async a row's advantage is computed when its own task is finished"
