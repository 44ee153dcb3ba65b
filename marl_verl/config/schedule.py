"""The schedule of sampling and training (`marl.schedule`): its settings, and checks for incompatible ones.

With `mode: async` each policy is trained when its buffer is full, on rows that may be older than its weights. Then the
advantage of a task's rows must not depend on other tasks, and the loss must use the sampling probabilities pi_rollout:
either as a weight min(pi_old / pi_rollout, c), truncated importance sampling with pi_old of the weights at the start of
the update, or in the ratio itself, pi / pi_rollout (`bypass_mode`).
"""

from collections.abc import Mapping

import numpy as np
from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.algorithms import Algorithm
from marl_verl.config.fit import SyntheticTeam
from marl_verl.config.loss import updates_per_batch
from marl_verl.config.parts import loss_named
from marl_verl.config.schema import Schedule
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.team import TeamConfig

WHERE = "marl.schedule"
SMALL = 8
"""A synchronous update has at most this many times the rows of an asynchronous one that is not called small."""


def settings_of(config: DictConfig) -> Schedule:
    """The `marl.schedule` section of a config."""
    return build(Schedule, OmegaConf.to_container(config.marl.schedule, resolve=True), WHERE)  # type: ignore[arg-type]


def check_schedule(config: DictConfig, team: TeamConfig, algorithm: Algorithm, synthetic: SyntheticTeam) -> None:
    """MarlError if `marl.schedule` is incompatible with the run; `config` is resolved, with `policies`."""
    settings = settings_of(config)
    if settings.mode == "sync":
        return
    if algorithm.advantage.remembers:
        what = f"advantage '{algorithm.advantage.name}' depends on earlier steps, but with"
        raise MarlError(f"{what} {WHERE}.mode=async steps overlap: use mode=sync")
    if algorithm.advantage.wants_critic() or OmegaConf.select(config, "marl.critic.scope") is not None:
        what = f"{WHERE}.mode=async does not train a critic, but algorithm '{team.algorithm.name}' has one"
        raise MarlError(f"{what}: use mode=sync")
    if team.sharing:
        what = f"'marl.policies.{team.sharing[0]}.base=shared' needs {WHERE}.mode=sync"
        raise MarlError(f"{what}: one policy's weights cannot change while others on its servers are sampling")
    for past in team.past.values():
        problem = f"'{past.kind}' of an agent needs {WHERE}.mode=sync"
        raise MarlError(f"{problem}: with async, tasks that meet different snapshots are in flight at once")
    for name, policy in team.policies.items():
        if not policy.trained:
            continue
        others = [other for other, each in team.policies.items() if other != name and each.pool == policy.pool]
        if policy.pool is not None and others:
            what = f"policies '{name}' and '{others[0]}' share pool '{policy.pool}', where all servers sleep while one"
            remedy = f"with {WHERE}.mode=async give each a separate pool, or use mode=sync"
            raise MarlError(f"{what} policy learns: {remedy}")
        own = config.policies[name]
        _check_loss(own, name, policy.loss or algorithm.loss)
        # the rows of an update are split equally among the GPUs that train
        width = OmegaConf.select(own, "actor_rollout_ref.actor.ulysses_sequence_parallel_size") or 1
        slots = int(own.trainer.n_gpus_per_node) * int(own.trainer.nnodes)
        ranks = slots // int(width)
        if str(own.actor_rollout_ref.actor.strategy).startswith("fsdp") and (settings.batch or 0) % ranks:
            what = f"'{WHERE}.batch' is {settings.batch}, which does not divide among the {ranks} ranks of policy"
            raise MarlError(f"{what} '{name}' ({slots} GPUs): make it a multiple of {ranks}")
    _check_independent(synthetic)


def small_updates(config: DictConfig, team: TeamConfig, rows: Mapping[str, int]) -> list[str]:
    """A note for each policy whose asynchronous updates have far fewer rows than a synchronous update.

    Args:
        rows: policy -> about the rows of a synchronous step.
    """
    settings, notes = settings_of(config), []
    for name, count in rows.items():
        if settings.mode == "sync" or not team.policies[name].trained:
            continue
        usual = count // updates_per_batch(config, config.policies[name].actor_rollout_ref.actor)
        if settings.batch is not None and SMALL * settings.batch < usual:
            what = f"policy '{name}' learns from {settings.batch} rows an update ({WHERE}.batch), with mode=sync from"
            notes.append(f"{what} about {usual}: such small updates may not learn; set {WHERE}.batch=null")
    return notes


def _check_loss(own: DictConfig, policy: str, name: str) -> None:
    """MarlError if a policy's loss does not correct for rows that older weights sampled."""
    where = f"marl.policies.{policy}.loss"
    if loss_named(name).one_update:
        what = f"loss '{name}' of policy '{policy}' is valid only for rows that the current weights sampled"
        raise MarlError(f"{what}, but with {WHERE}.mode=async rows are older: use {where}=ppo-clip-tis, or mode=sync")
    correction = own.algorithm.rollout_correction
    if not correction.rollout_is and not correction.bypass_mode:
        corrected = "gspo-tis" if name == "gspo" else "ppo-clip-tis"
        what = f"with {WHERE}.mode=async rows are older than the weights trained on them"
        why = f"loss '{name}' of policy '{policy}' does not correct for that"
        remedy = f"use {where}={corrected} (or marl.algorithm.options.loss for all), or"
        raise MarlError(f"{what}, but {why}: {remedy} algorithm.rollout_correction.bypass_mode=true")


def _check_independent(synthetic: SyntheticTeam) -> None:
    """MarlError unless synthetic rows of three tasks get the same advantages together as each task alone."""
    compute, table = synthetic.algorithm.compute, synthetic.table
    # groups of several sizes, also of one row
    tasks = [synthetic.turns(number, episodes) for number, episodes in enumerate((None, 2, 1))]
    prefix = f"algorithm '{synthetic.team.algorithm.name}' is incompatible with {WHERE}.mode=async"
    try:
        together = compute(table([turn for turns in tasks for turn in turns])).advantage
        apart = np.concatenate([compute(table(turns)).advantage for turns in tasks])
    except MarlError as error:
        raise MarlError(f"{prefix}: {error}") from error
    if not np.allclose(together, apart, rtol=1e-9, atol=1e-12):
        what = "it compares rows of different tasks (group, scale_group or singleton over the batch)"
        raise MarlError(f"{prefix}: {what}, but with async a row's advantage is computed when its own task is finished")
