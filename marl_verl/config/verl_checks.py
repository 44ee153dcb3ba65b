"""verl's and vLLM's own checks of settings that they would look up long after the start."""

from __future__ import annotations

import warnings

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import defaults_of
from marl_verl.config.verl_keys import ALLOWED, at, settings_of
from marl_verl.errors import MarlError, format_error, shown

LOOKED_UP = ("loss_agg_mode", "loss_mode")
SERVED, CORRECTION = "actor_rollout_ref.rollout.engine_kwargs.vllm", "algorithm.rollout_correction."


def check_with_verl(config: DictConfig, resolved: DictConfig) -> None:
    """Make verl's own config objects, and look up losses and arguments of vLLM. MarlError with their own errors.

    The imports take seconds: nothing is imported for a recipe that sets no such key.
    """
    usual = defaults_of(config)
    settings = {name: (key, value) for key, name, value in settings_of(OmegaConf.to_container(config), usual)}  # type: ignore[arg-type]
    tried = {name: value for name, (key, value) in settings.items() if key not in ALLOWED}
    keys = {settings[name][0] for name in tried}
    arguments = [key.removeprefix(f"{SERVED}.") for key in keys if key.startswith(SERVED) and at(usual, key) is None]
    correction = any(key.startswith(CORRECTION) for key, _ in settings.values())
    try:
        if correction or any(key.endswith(LOOKED_UP) for key in keys):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                _make(resolved)
        if arguments:
            from vllm import AsyncEngineArgs

            AsyncEngineArgs(**dict.fromkeys(arguments))
    except Exception as error:
        listed = ", ".join(f"{name}={shown(value)}" for name, value in tried.items())
        raise MarlError(f"{' '.join(format_error(error).split())} (one of {listed})") from error


def _make(resolved: DictConfig) -> None:
    """Make verl's objects of the actors and critics, look up the losses, and correct one token as the training does."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
    from verl.utils.config import omega_conf_to_dataclass

    names = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    for section in resolved.policies.values():
        omega_conf_to_dataclass(section.actor_rollout_ref.actor)
        get_policy_loss_fn(section.actor_rollout_ref.actor.policy_loss.loss_mode)
        options = {name: section.algorithm.rollout_correction[name] for name in names}
        compute_rollout_correction_and_rejection_mask(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), **options)
    for critic in resolved.critics.values():
        omega_conf_to_dataclass(critic.critic)
