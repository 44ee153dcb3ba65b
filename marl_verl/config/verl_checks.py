"""Check verl's keys in a composed config and in the sections of policies and critic: accepted keys, values in range."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.compose import composed_defaults
from marl_verl.config.schema import CRITIC_KEYS, Least
from marl_verl.config.verl_keys import ALLOWED, PAGE, PASS, check_keys, key_paths, verdict, with_added
from marl_verl.errors import MarlError, format_error, shown
from marl_verl.options import check_type
from marl_verl.team import TeamConfig, own_keys

ACTS_ONLY = {**ALLOWED, "actor_rollout_ref.rollout.temperature": Least}
"""As `ALLOWED`, for a policy that is not trained: it may act greedily."""
LOOKED_UP = ("loss_agg_mode", "kl_loss_type", "loss_mode")
"""Settings that verl looks up by name, long after the start."""
MOST = 5
"""Refused keys in a message."""


def check_verl(config: DictConfig, team: TeamConfig) -> None:
    """MarlError for a value outside its range in a policy or the critic, or with all keys that no team uses."""
    base = with_added(composed_defaults((f"hardware={_hardware(config)}",)))
    for verl, where, section in [*_sections(config, team)][1:]:  # the whole config is checked where it is composed
        policy = team.policies.get(where.removeprefix("marl.policies."))
        valid = base[verl] | dict.fromkeys(CRITIC_KEYS if policy is None else own_keys())
        check_keys(section, valid, verl, where, ACTS_ONLY if policy is not None and policy.frozen else ALLOWED)
    settings = [*changed(config, team)]
    for key, name, value in settings:
        if isinstance(value, str) and "${" in value and key in ALLOWED:
            check_type(resolved_value(config, name), ALLOWED[key], name)
    unused = [f"{name}={shown(value)} ({why})" for key, name, value in settings if (why := verdict(key)) != PASS]
    if unused:
        more = f" and {len(unused) - MOST} more" if len(unused) > MOST else ""
        raise MarlError(f"a team has no use for {', '.join(unused[:MOST])}{more}: remove them, see {PAGE}")


def resolved_value(config: DictConfig, key: str) -> Any:
    """The value of an interpolation. MarlError where it leads nowhere."""
    try:
        value = OmegaConf.select(config, key)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException as error:
        raise MarlError(f"'{key}' cannot be resolved: {' '.join(str(error).split())}") from error


def changed(config: DictConfig, team: TeamConfig) -> Iterator[tuple[str, str, Any]]:
    """Yield (verl's key, its name in the recipe, value) of the keys of verl that differ from a recipe's defaults."""
    usual = _usual(_hardware(config))
    for verl, where, section in _sections(config, team):
        for key, value in key_paths(section, verl):
            if not isinstance(value, dict) and value != usual.get(key):
                yield key, f"{where}{key.removeprefix(verl)}", value


@functools.cache
def _usual(hardware: str) -> dict[str, Any]:
    """Key -> default of a recipe."""
    return dict(key_paths(composed_defaults((f"hardware={hardware}",))))


def _hardware(config: DictConfig) -> str:
    return "cpu" if OmegaConf.select(config, "trainer.device") == "cpu" else "gpu"


def _sections(config: DictConfig, team: TeamConfig) -> Iterator[tuple[str, str, Any]]:
    """Yield (verl's section, its name in the recipe, content) of the whole config, each policy and the critic."""
    whole: Any = OmegaConf.to_container(config)
    for name in ("marl", "hydra", "policies", "critics"):
        whole.pop(name, None)
    yield "", "", whole
    for name, policy in team.policies.items():
        yield "actor_rollout_ref", f"marl.policies.{name}", policy.override
    critic: Any = resolved_value(config, "marl.critic") or {}
    yield "critic", "marl.critic", {key: value for key, value in critic.items() if key not in CRITIC_KEYS}


def check_with_verl(config: DictConfig, resolved: DictConfig, team: TeamConfig) -> None:
    """Make verl's own config objects, and look up losses and arguments of vLLM. MarlError with their own errors.

    The imports take seconds: nothing is imported for a recipe that sets no such key.
    """
    usual = _usual(_hardware(config))
    settings = [*changed(config, team)]
    keys = [key for key, _, _ in settings if key not in ALLOWED]
    correction = any(key.startswith("algorithm.rollout_correction.") for key, _, _ in settings)
    served = "actor_rollout_ref.rollout.engine_kwargs.vllm."
    arguments = [key.removeprefix(served) for key in keys if key.startswith(served) and key not in usual]
    try:
        if correction or any(key.endswith(LOOKED_UP) for key in keys):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for section in resolved.policies.values():
                    _make(section.actor_rollout_ref.actor)
                    _correct(section.algorithm.rollout_correction)
                for critic in resolved.critics.values():
                    _make(critic.critic)
        if arguments:
            from vllm import AsyncEngineArgs

            AsyncEngineArgs(**dict.fromkeys(arguments))
    except Exception as error:
        tried = ", ".join(f"{name}={shown(value)}" for key, name, value in settings if key in keys)
        raise MarlError(f"{' '.join(format_error(error).split())} (one of {tried})") from error


def _make(section: DictConfig) -> None:
    """Make verl's object of an actor's or a critic's section, and try its loss."""
    import torch
    from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
    from verl.utils.config import omega_conf_to_dataclass

    omega_conf_to_dataclass(section)
    if "policy_loss" in section:
        get_policy_loss_fn(section.policy_loss.loss_mode)
        kl_penalty(torch.zeros(1), torch.zeros(1), section.kl_loss_type)


def _correct(settings: DictConfig) -> None:
    """Correct one token as the training does."""
    import torch
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

    names = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
    options = {name: settings[name] for name in names}
    compute_rollout_correction_and_rejection_mask(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), **options)
