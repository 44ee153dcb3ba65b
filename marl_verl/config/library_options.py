"""Checks of options that torch and transformers take by name: both are imported for them, so run them in a child."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from marl_verl.errors import MarlError, nearest
from marl_verl.models.count import model_config
from marl_verl.team import TeamConfig

READ = ("attn_implementation", "moe_config")
"""Keys of `override_config` that verl reads itself."""

OWN = ("lr", "weight_decay", "betas")
"""Arguments of an optimiser that have keys of their own."""


def check_library_options(resolved: DictConfig, team: TeamConfig) -> None:
    """MarlError for an option of an optimiser that its class lacks, and for a key that a model's config lacks."""
    for where, optim, model in _learners(resolved, team):
        if optim.override_optimizer_config:
            _check_optimiser(optim, f"{where}.optim")
        if added := [str(key) for key in model.override_config if key not in READ]:
            _check_model(str(model.path), added, f"{where.removesuffix('.actor')}.model.override_config")


def _learners(resolved: DictConfig, team: TeamConfig) -> Iterator[tuple[str, Any, Any]]:
    for name in [name for name, policy in team.policies.items() if policy.trained]:
        part = resolved.policies[name].actor_rollout_ref
        yield f"marl.policies.{name}.actor", part.actor.optim, part.model
    for settings in resolved.critics.values():
        yield "marl.critic", settings.critic.optim, settings.critic.model


def _check_optimiser(optim: DictConfig, where: str) -> None:
    kind = getattr(importlib.import_module(str(optim.optimizer_impl)), str(optim.optimizer), None)
    if kind is None:
        raise MarlError(f"'{where}.optimizer' is '{optim.optimizer}', which '{optim.optimizer_impl}' does not have")
    names = [name for name in inspect.signature(kind).parameters if name not in ("params", "self")]
    for key in map(str, optim.override_optimizer_config):
        if key in OWN:
            raise MarlError(
                f"'{where}.override_optimizer_config.{key}' would replace '{where}.{key}': set that instead"
            )
        if key not in names:
            hint = nearest(key, names)
            raise MarlError(f"unknown key '{where}.override_optimizer_config.{key}' of {optim.optimizer}: {hint}")


def _check_model(path: str, keys: list[str], where: str) -> None:
    """A key may be in the model's config.json, or an attribute of its class; a model of unknown type is not checked."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    written = model_config(path)
    if (kind := written.get("model_type")) not in CONFIG_MAPPING:
        return
    plain: Any = CONFIG_MAPPING[kind]()
    names = {*written, *plain.to_dict(), *(name for name in vars(plain) if not name.startswith("_"))}
    for key in keys:
        if key not in names:
            raise MarlError(f"unknown key '{where}.{key}' of models of type '{kind}': {nearest(key, sorted(names))}")
