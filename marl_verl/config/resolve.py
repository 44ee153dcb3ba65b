"""A composed config made whole: one full `actor_rollout_ref` per policy under `policies`, interpolations resolved."""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.algorithms.losses import Loss
from marl_verl.config.compose import VERL_OPEN, check_keys
from marl_verl.config.critic import critic_configs
from marl_verl.config.lora import with_lora
from marl_verl.config.loss import check_policy, with_loss
from marl_verl.config.parts import algorithm_of
from marl_verl.config.placement import Pool, pools_of
from marl_verl.config.server_names import rollout_name
from marl_verl.errors import MarlError, nearest
from marl_verl.platforms.active import has_accelerator
from marl_verl.team import OWN_KEYS, PolicyConfig, TeamConfig


def policy_config(config: DictConfig, policy: PolicyConfig) -> DictConfig:
    """The config as one policy sees it: over `actor_rollout_ref`, which has the loss, the policy's part.

    Raises:
        MarlError: a key that `actor_rollout_ref` does not have.
    """
    base = OmegaConf.to_container(config.actor_rollout_ref)
    override, where = policy.override, f"marl.policies.{policy.name}"
    for key in override:
        if isinstance(base, dict) and key not in base:
            raise MarlError(f"unknown key '{where}.{key}': {nearest(str(key), [*map(str, base), *OWN_KEYS])}")
    check_keys(override, base, where, free=VERL_OPEN)
    whole = copy.deepcopy(config)
    OmegaConf.set_struct(whole, False)
    whole.actor_rollout_ref = OmegaConf.merge(whole.actor_rollout_ref, override)
    whole.actor_rollout_ref.rollout.name = rollout_name(policy.name)
    # verl divides by `rollout.n` where it counts episodes a task; a team's sampler decides that, we count rows
    whole.actor_rollout_ref.rollout.n = 1
    whole.actor_rollout_ref.actor.optim.total_training_steps = whole.trainer.total_training_steps
    if policy.frozen:
        whole.actor_rollout_ref.model.lora_rank = 0
        if "dummy" in str(whole.actor_rollout_ref.rollout.load_format):
            whole.actor_rollout_ref.rollout.load_format = "auto"  # nobody will send it weights
    return whole


def resolve(config: DictConfig, team: TeamConfig) -> DictConfig:
    """The config that is written to the run directory and that the trainer reads.

    Raises:
        MarlError: an interpolation that leads nowhere, a mandatory value that is missing, something that does not go
            with a policy's loss.
    """
    try:
        pools = {name: pool for pool in pools_of(config, team) for name in pool.policies}
        policies = {name: _policy(config, team, name, pools[name]) for name in pools}
        first = next((name for name in policies if team.policies[name].trained), next(iter(policies), None))
        whole = copy.deepcopy(config)
        with open_dict(whole):
            whole.policies = policies
            whole.critics = critic_configs(config, team, algorithm_of(team), policies)
            if first is not None:
                # verl reads a tokenizer and a model config from here; every policy has its own under `policies`
                whole.actor_rollout_ref = OmegaConf.create(policies[first]["actor_rollout_ref"])
                # a validation's sampling, and that of endpoints, is everybody's and not the first policy's
                for key in ("name", "temperature", "top_p", "top_k", "val_kwargs"):
                    whole.actor_rollout_ref.rollout[key] = config.actor_rollout_ref.rollout[key]
                whole.algorithm.rollout_correction = OmegaConf.create(
                    policies[first]["algorithm"]["rollout_correction"]
                )
        resolved: Any = OmegaConf.create(OmegaConf.to_container(whole, resolve=True))
    except OmegaConfBaseException as error:
        raise MarlError(f"config cannot be resolved: {' '.join(str(error).split())}") from error
    assert isinstance(resolved, DictConfig)
    return resolved


def loss_of(team: TeamConfig, policy: str) -> tuple[str, Loss]:
    """(name, loss) that a policy learns with. MarlError if it is unknown, or registered and no `Loss`."""
    name = team.policies[policy].loss or algorithm_of(team).loss
    loss = plugins.load().get("losses", name)
    if not isinstance(loss, Loss):
        raise MarlError(f"loss '{name}' must be a Loss, it is {loss!r:.80}")
    return name, loss


def _policy(config: DictConfig, team: TeamConfig, name: str, pool: Pool) -> dict[str, Any]:
    """What the trainer merges over the whole config for a policy, with nothing left to resolve."""
    policy = team.policies[name]
    called, loss = loss_of(team, name)
    own = copy.deepcopy(config)
    own.trainer.n_gpus_per_node, own.trainer.nnodes = pool.gpus, pool.nodes
    own = policy_config(with_loss(own, called, loss), policy)
    if policy.trained:
        own.actor_rollout_ref = with_lora(own.actor_rollout_ref)
        if pool.shared and has_accelerator():
            offload(own, policy)
        check_policy(own, name, called, loss)
    resolved: Any = OmegaConf.create(OmegaConf.to_container(own, resolve=True))
    return {
        "actor_rollout_ref": OmegaConf.to_container(resolved.actor_rollout_ref),
        "algorithm": {"rollout_correction": OmegaConf.to_container(resolved.algorithm.rollout_correction)},
        "trainer": {"n_gpus_per_node": pool.gpus, "nnodes": pool.nodes},
    }


def offload(own: DictConfig, policy: PolicyConfig) -> None:
    """A policy whose turn it is not leaves the GPU, unless the policy says otherwise itself."""
    said = OmegaConf.create(policy.override)
    for key in ("param_offload", "optimizer_offload"):
        if OmegaConf.select(said, f"actor.fsdp_config.{key}") is None:
            own.actor_rollout_ref.actor.fsdp_config[key] = True
