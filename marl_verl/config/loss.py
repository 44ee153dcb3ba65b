"""Apply a loss to a config: merge its verl settings, and check the config for settings incompatible with it."""

import copy
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl.algo.algorithms.losses import Loss
from marl_verl.config.recipe_file import verl_configs
from marl_verl.config.verl_keys import key_paths
from marl_verl.errors import MarlError, check

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
ANOTHER_LOSS = "choose another loss (marl.algorithm.options.loss)"


def with_loss(config: DictConfig, name: str, loss: Loss) -> DictConfig:
    """Return a copy of a config with the loss's settings merged over it. MarlError for a conflict between the two."""
    _check_not_set(config, name, ACTOR, loss.actor)
    _check_not_set(config, name, CORRECTION, loss.correction)
    whole = copy.deepcopy(config)
    OmegaConf.set_struct(whole, False)
    whole.actor_rollout_ref.actor = OmegaConf.merge(whole.actor_rollout_ref.actor, dict(loss.actor))
    whole.algorithm.rollout_correction = OmegaConf.merge(
        _verl_default(CORRECTION), whole.algorithm.rollout_correction or {}, dict(loss.correction)
    )
    correction = whole.algorithm.rollout_correction
    level = correction.rollout_is or correction.rollout_rs
    if correction.bypass_mode and level:
        message = f"'{CORRECTION}.bypass_mode' uses the rollout log-probs as the old ones, so that '{level}' (loss"
        raise MarlError(f"{message} '{name}') has no effect: set bypass_mode=false, or {ANOTHER_LOSS}")
    return whole


def updates_per_batch(config: DictConfig, model: Any) -> int:
    """Optimiser updates per epoch over a batch, whose rows they share equally; `model` is an actor or critic section
    (mini-batches count tasks). A quotient that is not whole is rounded."""
    return max(1, int(config.data.train_batch_size / int(model.ppo_mini_batch_size) + 0.5))


def separate_reason(config: DictConfig, actor: DictConfig) -> str | None:
    """Why rows compute what they have in common separately (`learning/prefixes.py`); None if they share it."""
    if not config.marl.run.get("share_prefixes", True):  # a run of an older version has no such key
        return "marl.run.share_prefixes is false"
    if actor.shuffle:
        return "actor.shuffle mixes rows between updates"
    if (mode := actor.policy_loss.loss_mode) in ("clip_cov", "kl_cov", "geo_mean"):
        return f"loss_mode {mode} depends on the rows of a micro-batch"
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        return "seq-mean-token-sum-norm divides by the longest response of a micro-batch: set loss_scale_factor"
    return None


@check
def check_policy(config: DictConfig, policy: str, name: str, loss: Loss) -> Iterator[str]:
    """MarlError where a policy's settings are incompatible with its loss; `config` has its `actor_rollout_ref`."""
    actor, correction = config.actor_rollout_ref.actor, config.algorithm.rollout_correction
    batch = config.data.train_batch_size
    updates = actor.ppo_epochs * updates_per_batch(config, actor)
    if loss.one_update and updates != 1:
        sizes = f"ppo_epochs={actor.ppo_epochs}, ppo_mini_batch_size={actor.ppo_mini_batch_size}"
        message = f"loss '{name}' allows one optimiser update per batch, but policy '{policy}' would make {updates}"
        remedy = f"ppo_epochs=1 and ppo_mini_batch_size={batch}, below {ACTOR} or marl.policies.{policy}.actor"
        yield f"{message} ({sizes}, data.train_batch_size={batch}): set {remedy}"
    needed = correction.rollout_is or correction.rollout_rs or correction.bypass_mode
    if needed and not config.actor_rollout_ref.rollout.calculate_log_probs:
        message = f"{CORRECTION} needs the log-probs of the sampled tokens, but policy '{policy}' does not request them"
        yield f"{message}: set rollout.calculate_log_probs=true"
    if actor.policy_loss.loss_mode == "bypass_mode":
        message = f"policy '{policy}' has policy_loss.loss_mode=bypass_mode, which ignores {CORRECTION}"
        yield f"{message}: set another loss_mode, and the correction in {CORRECTION}"


def _check_not_set(config: DictConfig, name: str, where: str, settings: Mapping[str, Any]) -> None:
    """MarlError where the config sets a key of the loss to another value; verl's default counts as not set."""
    default = _verl_default(where)
    for key, value in key_paths(settings):
        if isinstance(value, Mapping):
            continue
        value_set = OmegaConf.select(config, f"{where}.{key}")
        if value_set is not None and value_set not in (value, OmegaConf.select(default, key)):
            instead = f"set marl.policies.<name>.actor.{key}" if where == ACTOR else ANOTHER_LOSS
            remedy = f"leave it out, or {instead}"
            raise MarlError(f"'{where}.{key}' is {value_set!r}, but loss '{name}' sets it to {value!r}: {remedy}")


@functools.cache
def _verl_default(where: str) -> DictConfig:
    file = {ACTOR: "actor/actor.yaml", CORRECTION: "algorithm/rollout_correction.yaml"}[where]
    return OmegaConf.load(verl_configs() / file)  # type: ignore[return-value]
