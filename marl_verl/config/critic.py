"""The critics of a run: which an algorithm needs, and verl's full `critic` config for each.

A critic runs as the policy whose GPUs it shares does: same strategy, engine, precision and token limits, and the same
model unless `marl.critic` names another. Its loss is a mean over rows, since a row has one value.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

from omegaconf import DictConfig, OmegaConf

from marl_verl.algorithms import Algorithm
from marl_verl.config.compose import VERL_OPEN, check_keys
from marl_verl.config.policy_models import local_model, tiny_model
from marl_verl.errors import MarlError, nearest
from marl_verl.models.tiny import TinyModel
from marl_verl.options import Positive, check_type
from marl_verl.team import TeamConfig

OWN_KEYS = ("scope", "tiny", "max_prompt_length")
"""Keys of `marl.critic` that are not a part of verl's `critic`."""
ENGINES = (("fsdp_config", "fsdp"), ("megatron", "megatron"), ("torchtitan", "torchtitan"), ("veomni", "veomni"))
"""Where verl keeps an engine's settings: in `actor`, in `critic`."""
LORA = ("lora", "lora_rank", "lora_alpha", "lora_adapter_path", "target_modules", "exclude_modules")
"""Of a policy's `model`, what its critic does not take over: the critic has no adapter unless it says so itself."""


def critic_configs(
    config: DictConfig, team: TeamConfig, algorithm: Algorithm, policies: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Critic ("team", or its policy's name) -> what the trainer needs; {} where the algorithm uses none.

    `policies` are those of `resolve`. MarlError as `check_critic`.
    """
    scope = check_critic(config, team, algorithm)
    trained = [policy.name for policy in team.policies.values() if policy.trained]
    if scope is None or not trained:
        return {}
    hosts = {name: name for name in trained} if scope == "policy" else {"team": trained[0]}
    limit = _section(config).get("max_prompt_length") or int(config.data.max_prompt_length) * len(team.agents)
    critics = {}
    for name, policy in hosts.items():
        critic = _verl_critic(config, policies[policy]["actor_rollout_ref"])
        critics[name] = {"critic": critic, "policy": policy, "scope": scope, "max_prompt_length": limit}
    return critics


def check_critic(config: DictConfig, team: TeamConfig, algorithm: Algorithm) -> str | None:
    """The scope of the run's critics (the algorithm's). MarlError for a `marl.critic` that is wrong or not used."""
    section, wish, name = _section(config), algorithm.advantage.wants_critic(), team.algorithm.name
    scope = section.get("scope")
    check_type(scope, Literal["policy", "team"] | None, "marl.critic.scope")
    check_type(section.get("max_prompt_length"), Positive | None, "marl.critic.max_prompt_length")
    given = [key for key, value in section.items() if value is not None]
    if wish is None and given:
        others = "marl.algorithm.name=ippo or mappo (or marl.algorithm.options.returns=gae)"
        remedy = f"leave marl.critic out, or choose {others}"
        raise MarlError(f"'marl.critic.{given[0]}' is set, and algorithm '{name}' uses no critic: {remedy}")
    if scope not in (None, wish):
        what = f"'marl.critic.scope' is '{scope}', and algorithm '{name}' needs a critic of scope '{wish}'"
        raise MarlError(f"{what}: leave it out, or set marl.algorithm.options.critic={scope}")
    base: Any = OmegaConf.to_container(config.critic)
    override = {key: value for key, value in section.items() if key not in OWN_KEYS}
    for key in override:
        if key not in base:
            raise MarlError(f"unknown key 'marl.critic.{key}': {nearest(key, [*map(str, base), *OWN_KEYS])}")
    check_keys(override, base, "marl.critic", free=VERL_OPEN)
    path = (section.get("model") or {}).get("path")
    if path and "${" not in str(path):
        local_model("marl.critic", path)
    return wish


def tiny_critic(config: DictConfig, team: TeamConfig) -> TinyModel | None:
    """The tiny model of `marl.critic.tiny`, for `marl.critic.model.path`. MarlError as `tiny_model`."""
    section = _section(config)
    tiny = section.get("tiny")
    if tiny is None:
        return None
    check_type(tiny, Mapping, "marl.critic.tiny")
    path, seed = (section.get("model") or {}).get("path"), int(config.marl.run.seed)
    return tiny_model("marl.critic", tiny, path, team, list(team.agents), seed)


def _section(config: DictConfig) -> dict[str, Any]:
    section: Any = OmegaConf.to_container(config.marl.critic) if config.marl.get("critic") is not None else {}
    if not isinstance(section, dict):
        raise MarlError(f"'marl.critic' must be a mapping such as {{scope: team}}, got {section!r}")
    return {str(key): value for key, value in section.items()}


def _verl_critic(config: DictConfig, policy: Mapping[str, Any]) -> dict[str, Any]:
    """verl's critic config, with nothing left to resolve: verl's defaults, the policy's settings, the user's."""
    whole = copy.deepcopy(config)
    OmegaConf.set_struct(whole, False)
    whole.actor_rollout_ref = policy  # verl's critic takes batch sizes and epochs from there
    actor, base = policy["actor"], whole.critic
    base.strategy = actor["strategy"]
    for mine, theirs in ENGINES:
        if mine in actor and theirs in base:
            base[theirs] = OmegaConf.merge(base[theirs], actor[mine])
    model = {key: value for key, value in policy["model"].items() if key not in LORA and key in base.model}
    base.model = OmegaConf.merge(base.model, model)
    override = {key: value for key, value in _section(config).items() if key not in OWN_KEYS}
    if (override.get("model") or {}).get("path"):  # the policy's tokenizer and config are of the policy's model
        base.model.tokenizer_path = base.model.hf_config_path = None
    base.ppo_max_token_len_per_gpu = actor["ppo_max_token_len_per_gpu"]
    base.loss_agg_mode, base.loss_scale_factor = "token-mean", None
    base.optim.total_training_steps = whole.trainer.total_training_steps
    whole.critic = OmegaConf.merge(base, override)
    resolved: Any = OmegaConf.to_container(whole, resolve=True)
    return resolved["critic"]  # type: ignore[no-any-return]
