"""A composed config made whole: one full `actor_rollout_ref` per policy under `policies`, interpolations resolved."""

from __future__ import annotations

import copy
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from marl_verl import plugins
from marl_verl.config.compose import VERL_OPEN, check_keys
from marl_verl.config.loss import check_policy, with_loss
from marl_verl.errors import MarlError, nearest
from marl_verl.losses import Loss
from marl_verl.parts import algorithm_of
from marl_verl.rollout.servers import rollout_name
from marl_verl.team import Policy, Team


def policy_config(config: DictConfig, policy: Policy) -> DictConfig:
    """The config as one policy sees it: over `actor_rollout_ref`, which has the algorithm's loss, the policy's part.

    Raises:
        MarlError: a key that `actor_rollout_ref` does not have.
    """
    base = OmegaConf.to_container(config.actor_rollout_ref)
    override, where = policy.override, f"marl.policies.{policy.name}"
    for key in override:
        if isinstance(base, dict) and key not in base:
            raise MarlError(f"unknown key '{where}.{key}': {nearest(str(key), [*map(str, base), 'frozen', 'tiny'])}")
    check_keys(override, base, where, free=VERL_OPEN)
    whole = copy.deepcopy(config)
    OmegaConf.set_struct(whole, False)
    whole.actor_rollout_ref = OmegaConf.merge(whole.actor_rollout_ref, override)
    whole.actor_rollout_ref.rollout.name = rollout_name(policy.name)
    # verl divides by `rollout.n` where it counts episodes a task; a team's sampler decides that, we count rows
    whole.actor_rollout_ref.rollout.n = 1
    whole.actor_rollout_ref.actor.optim.total_training_steps = whole.trainer.total_training_steps
    return whole


def resolve(config: DictConfig, team: Team) -> DictConfig:
    """The config that is written to the run directory and that the trainer reads.

    Raises:
        MarlError: an interpolation that leads nowhere, a mandatory value that is missing, something that does not go
            with the algorithm's loss.
    """
    name = algorithm_of(team).loss
    loss = plugins.load().get("losses", name)
    if not isinstance(loss, Loss):
        raise MarlError(f"loss '{name}' must be a Loss, it is {loss!r:.80}")
    try:
        whole = with_loss(config, name, loss)
        policies: dict[str, Any] = {}
        for policy in team.policies.values():
            own = policy_config(whole, policy)
            if not policy.frozen:
                check_policy(own, policy.name, name, loss)
            policies[policy.name] = OmegaConf.to_container(own.actor_rollout_ref, resolve=True)
        first = next(iter(policies.values()))
        with open_dict(whole):
            # verl reads a tokenizer and a model config from here; every policy has its own under `policies`
            whole.actor_rollout_ref = OmegaConf.create(first)
            whole.actor_rollout_ref.rollout.name = "vllm"
            whole.policies = policies
        resolved: Any = OmegaConf.create(OmegaConf.to_container(whole, resolve=True))
    except OmegaConfBaseException as error:
        raise MarlError(f"config cannot be resolved: {' '.join(str(error).split())}") from error
    assert isinstance(resolved, DictConfig)
    return resolved
