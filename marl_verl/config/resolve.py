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
from marl_verl.config.loss import check_policy, with_loss
from marl_verl.config.parts import algorithm_of
from marl_verl.config.placement import Pool, pools_of
from marl_verl.config.server_names import rollout_name
from marl_verl.errors import MarlError, nearest
from marl_verl.platforms.active import has_accelerator
from marl_verl.team import OWN_KEYS, PolicyConfig, TeamConfig


def resolve(config: DictConfig, team: TeamConfig) -> DictConfig:
    """The config that the trainer reads. MarlError where it cannot be resolved, or is incompatible with a loss."""
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
                correction = policies[first]["algorithm"]["rollout_correction"]
                whole.algorithm.rollout_correction = OmegaConf.create(correction)
        resolved = _resolved(whole)
    except OmegaConfBaseException as error:
        raise MarlError(f"config cannot be resolved: {' '.join(str(error).split())}") from error
    return resolved


def _resolved(config: DictConfig) -> DictConfig:
    return OmegaConf.create(OmegaConf.to_container(config, resolve=True))  # type: ignore[return-value]


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
    own = with_loss(config, called, loss)  # a copy
    own.trainer.n_gpus_per_node, own.trainer.nnodes = pool.gpus, pool.nodes
    _override(own, policy)
    if policy.trained:
        own.actor_rollout_ref = with_lora(own.actor_rollout_ref)
        if pool.shared and has_accelerator():
            _offload(own, policy)
        check_policy(own, name, called, loss)
    resolved = _resolved(own)
    return {
        "actor_rollout_ref": OmegaConf.to_container(resolved.actor_rollout_ref),
        "algorithm": {"rollout_correction": OmegaConf.to_container(resolved.algorithm.rollout_correction)},
        "trainer": {"n_gpus_per_node": pool.gpus, "nnodes": pool.nodes},
    }


def _override(config: DictConfig, policy: PolicyConfig) -> None:
    """Merge a policy's part over `actor_rollout_ref`, which has the loss."""
    base: Any = OmegaConf.to_container(config.actor_rollout_ref)
    where = f"marl.policies.{policy.name}"
    for key in policy.override:
        if key not in base:
            raise MarlError(f"unknown key '{where}.{key}': {nearest(str(key), [*map(str, base), *OWN_KEYS])}")
    check_keys(policy.override, base, where, free=VERL_OPEN)
    config.actor_rollout_ref = OmegaConf.merge(config.actor_rollout_ref, policy.override)
    own = config.actor_rollout_ref
    own.rollout.name = rollout_name(policy.name)
    own.rollout.n = 1  # verl divides by it where it counts episodes a task; a team's sampler decides that
    own.actor.optim.total_training_steps = config.trainer.total_training_steps
    if policy.frozen:
        own.model.lora_rank = 0
        if "dummy" in str(own.rollout.load_format):
            own.rollout.load_format = "auto"  # nobody will send it weights


def with_lora(actor_rollout_ref: DictConfig) -> DictConfig:
    """The settings without an adapter; with one, a copy under which it reaches servers and checkpoints.

    LoRA: W stays, and W + (alpha / r) B A acts. MarlError for a rank, an alpha or a backend that is not supported.
    """
    model = actor_rollout_ref.model
    rank, strategy = model.lora_rank, str(actor_rollout_ref.actor.strategy)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 0:
        raise MarlError(f"model.lora_rank must be a whole number, 0 for no adapter, got {rank!r}")
    if OmegaConf.select(model, "lora.rank") and strategy.startswith("fsdp"):
        what = f"model.lora.rank={model.lora.rank} is for the Megatron backend, and actor.strategy is '{strategy}'"
        raise MarlError(f"{what}: set model.lora_rank")
    if not rank:
        return actor_rollout_ref
    if not strategy.startswith("fsdp"):
        raise MarlError(f"model.lora_rank={rank} needs actor.strategy fsdp2 or fsdp, it is '{strategy}'")
    if not model.lora_alpha > 0:
        raise MarlError(f"model.lora_alpha must be above 0, got {model.lora_alpha}: the adapter would do nothing")
    own = copy.deepcopy(actor_rollout_ref)
    OmegaConf.set_struct(own, False)
    if "dummy" in str(own.rollout.load_format):
        own.rollout.load_format = "auto"  # the servers read the base model themselves, only the adapter is synced
    # the base is on disk already. verl's `hf_model` of an adapter is a file whose names no model has: transformers
    # would load random weights from it without an error
    saved = own.actor.checkpoint
    saved.save_contents = [part for part in saved.save_contents if part in ("model", "optimizer", "extra")]
    saved.save_lora_only = True
    return own


def _offload(own: DictConfig, policy: PolicyConfig) -> None:
    """A policy whose turn it is not leaves the GPU, unless the policy says otherwise itself."""
    said = OmegaConf.create(policy.override)
    for key in ("param_offload", "optimizer_offload"):
        if OmegaConf.select(said, f"actor.fsdp_config.{key}") is None:
            own.actor_rollout_ref.actor.fsdp_config[key] = True
