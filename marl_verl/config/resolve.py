"""Resolve a composed config, and add verl's full config per policy (`policies`) and per critic (`critics`).

A critic takes strategy, engine, precision and token limits from the policy whose GPUs it shares, and its model too
unless `marl.critic` names another. Its loss is a mean over rows, since a row has one value.
"""

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.losses import Loss
from marl_verl.config.hardware import on_gpu, rollout_name
from marl_verl.config.loss import check_policy, with_loss
from marl_verl.config.model_settings import with_model_settings
from marl_verl.config.parts import algorithm_of, loss_named
from marl_verl.config.placement import Pool, check_shared_base, pools_of, use_shared_base
from marl_verl.config.policy_models import local_model, made_model
from marl_verl.config.schema import CRITIC_KEYS, CriticKeys
from marl_verl.errors import MarlError, user_error
from marl_verl.models.sources import ModelToMake, located
from marl_verl.options import build
from marl_verl.team import TeamConfig, source_of

LORA = ("lora", "lora_rank", "lora_alpha", "lora_adapter_path", "target_modules", "exclude_modules")
NOT_INHERITED = (*LORA, "use_fused_kernels")
"""Keys of a policy's `model` that its critic does not inherit: it has an adapter only if `marl.critic` sets one, and
verl's fused kernels need a language model's output layer."""


def resolve(config: DictConfig, team: TeamConfig) -> DictConfig:
    """The resolved config for the trainer. MarlError where it cannot be resolved, or is incompatible with a loss."""
    with user_error("config cannot be resolved", OmegaConfBaseException):
        # loss -> (a copy of the config with its settings, in which each policy's section is resolved; the section)
        copies: dict[str, tuple[DictConfig, Any]] = {}
        policies: dict[str, dict[str, Any]] = {}
        pools = {name: pool for pool in pools_of(config, team) for name in pool.policies}
        for name, pool in pools.items():
            called, loss = loss_of(team, name)
            if called not in copies:
                whole = with_loss(config, called, loss)
                copies[called] = whole, OmegaConf.to_container(whole.actor_rollout_ref)
            policies[name] = _policy(*copies[called], team, name, pool)
        check_shared_base(policies, team)
        first = next((name for name in policies if team.policies[name].trained), next(iter(policies), None))
        critics = critic_configs(config, team, algorithm_of(team), policies)
        whole = next(iter(copies.values()))[0] if copies else config
        if first is not None:
            for key in ("n_gpus_per_node", "nnodes"):
                whole.trainer[key] = config.trainer[key]
            # verl reads a tokenizer and a model config from here; every policy has its own under `policies`
            whole.actor_rollout_ref = policies[first]["actor_rollout_ref"]
            # validation and endpoints use the team's sampling settings, not the first policy's
            for key in ("name", "temperature", "top_p", "top_k", "val_kwargs"):
                whole.actor_rollout_ref.rollout[key] = config.actor_rollout_ref.rollout[key]
            whole.algorithm.rollout_correction = policies[first]["algorithm"]["rollout_correction"]
        return OmegaConf.create({**_resolved(whole), "policies": policies, "critics": critics})


def _resolved(config: DictConfig) -> dict[str, Any]:
    """A config, or a section of one, without interpolations."""
    resolved: Any = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in resolved.items()}


def loss_of(team: TeamConfig, policy: str) -> tuple[str, Loss]:
    """(name, loss) of a policy. MarlError as `loss_named`."""
    name = team.policies[policy].loss or algorithm_of(team).loss
    return name, loss_named(name)


def _policy(whole: DictConfig, section: Mapping[str, Any], team: TeamConfig, name: str, pool: Pool) -> dict[str, Any]:
    """The resolved sections that the trainer merges over the whole config for a policy.

    Args:
        whole: a config with the settings of the policy's loss, into which its section is written.
        section: its `actor_rollout_ref`, not resolved.
    """
    policy = team.policies[name]
    whole.trainer.n_gpus_per_node, whole.trainer.nnodes = pool.gpus, pool.nodes
    whole.actor_rollout_ref = merged(section, policy.override)
    part = whole.actor_rollout_ref
    part.model.path = located(part.model.path)
    part.rollout.name = rollout_name(name)
    part.rollout.n = 1  # verl divides by it to count episodes per task; for a team the sampler sets that number
    if part.model.tokenizer_path:  # else vLLM looks for stop strings in texts of the model folder's tokenizer
        served = {"vllm": {"tokenizer": part.model.tokenizer_path}}
        part.rollout.engine_kwargs = OmegaConf.merge(served, part.rollout.engine_kwargs)
    part.actor.optim.total_training_steps = whole.trainer.total_training_steps
    if policy.frozen:
        part.model.lora_rank = 0
        if "dummy" in str(part.rollout.load_format):
            part.rollout.load_format = "auto"  # weights are never synced to its servers
    else:
        if part.model.lora_rank:
            use_adapter(part)
        if policy.base is not None:
            use_shared_base(part, name, team.sharing)
        if pool.shared and on_gpu(whole):  # offload to CPU between this policy's updates, unless the policy sets it
            engine = (policy.override.get("actor") or {}).get("fsdp_config") or {}
            for key in ("param_offload", "optimizer_offload"):
                if engine.get(key) is None:
                    part.actor.fsdp_config[key] = True
        check_policy(whole, name, *loss_of(team, name))
    if whole.trainer.device == "cpu":
        with_model_settings(part)
    template = whole.data.get("apply_chat_template_kwargs") or {}
    return {
        "data": {"apply_chat_template_kwargs": {**template, **(policy.apply_chat_template_kwargs or {})}},
        "actor_rollout_ref": _resolved(part),
        "algorithm": {"rollout_correction": _resolved(whole.algorithm.rollout_correction)},
        "trainer": {"n_gpus_per_node": pool.gpus, "nnodes": pool.nodes},
    }


def merged(section: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A section with the values of an override, of mappings only the keys that it has."""
    result = dict(section)
    for key, value in override.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return result


def use_adapter(actor_rollout_ref: DictConfig) -> None:
    """Adjust the settings of servers and checkpoints for an adapter (W + (alpha / r) B A)."""
    if "dummy" in str(actor_rollout_ref.rollout.load_format):  # only the adapter is synced: servers load the base model
        actor_rollout_ref.rollout.load_format = "auto"
    # the base is on disk already. verl's `hf_model` of an adapter has parameter names that match no model:
    # transformers would load random weights from it without an error
    saved = actor_rollout_ref.actor.checkpoint
    saved.save_contents = [part for part in saved.save_contents if part in ("model", "optimizer", "extra")]
    saved.save_lora_only = True


def critic_configs(
    config: DictConfig, team: TeamConfig, algorithm: Algorithm, policies: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Critic ("team", or its policy's name) -> its config for the trainer; {} without critics. As `check_critic`."""
    scope = check_critic(config, team, algorithm)
    trained = [policy.name for policy in team.policies.values() if policy.trained]
    if scope is None or not trained:
        return {}
    hosts = {name: name for name in trained} if scope == "policy" else {"team": trained[0]}
    limit = _section(config).get("max_prompt_length") or int(config.data.max_prompt_length) * len(team.agents)
    if scope == "policy" and team.sharing:
        problem = f"algorithm '{team.algorithm.name}' has a critic per policy, but '{team.sharing[0]}' has base=shared"
        raise MarlError(f"{problem}: remove base, or use one critic for the team (marl.algorithm.name=mappo)")
    critics = {}
    for name, policy in hosts.items():
        critic = _verl_critic(config, policies[policy]["actor_rollout_ref"])
        critics[name] = {"critic": critic, "policy": policy, "scope": scope, "max_prompt_length": limit}
    return critics


def check_critic(config: DictConfig, team: TeamConfig, algorithm: Algorithm) -> str | None:
    """The scope of the run's critics: "policy", one per trained policy; "team", one that sees all observations; or
    None. MarlError for an invalid or unused `marl.critic`."""
    section, scope = _section(config), algorithm.advantage.wants_critic()
    build(CriticKeys, {key: section[key] for key in ("max_prompt_length",) if key in section}, "marl.critic")
    keys = [key for key, value in section.items() if value is not None]
    if scope is None and keys:
        remedy = "leave marl.critic out, or choose marl.algorithm.name=ippo, mappo or options.advantage.returns=gae"
        raise MarlError(
            f"'marl.critic.{keys[0]}' is set, but algorithm '{team.algorithm.name}' has no critic: {remedy}"
        )
    path = (section.get("model") or {}).get("path")
    if path and "${" not in str(path) and located(path) == path:
        local_model("marl.critic", path)
    return scope


def made_critic(config: DictConfig, team: TeamConfig) -> tuple[str, ModelToMake] | None:
    """(key, model) where the section of the critic describes a model to make. MarlError as `made_model`."""
    section = _section(config)
    made = source_of(section, "marl.critic")
    if made is None:
        return None
    path, seed = (section.get("model") or {}).get("path"), int(config.marl.run.seed)
    return made.name, made_model("marl.critic", made, path, team, list(team.agents), seed)


def _section(config: DictConfig) -> dict[str, Any]:
    section: Any = OmegaConf.to_container(config.marl.critic) if config.marl.get("critic") is not None else {}
    return {str(key): value for key, value in section.items()}


def _verl_critic(config: DictConfig, policy: Mapping[str, Any]) -> dict[str, Any]:
    """verl's resolved critic config: the user's settings over the policy's over verl's defaults."""
    whole = copy.deepcopy(config)
    OmegaConf.set_struct(whole, False)
    whole.actor_rollout_ref = policy  # verl's critic interpolates batch sizes and epochs from it
    actor, base = policy["actor"], whole.critic
    base.strategy = actor["strategy"]
    base.fsdp = OmegaConf.merge(base.fsdp, actor["fsdp_config"])
    model = {key: value for key, value in policy["model"].items() if key not in NOT_INHERITED and key in base.model}
    base.model = OmegaConf.merge(base.model, model)
    override = {key: value for key, value in _section(config).items() if key not in CRITIC_KEYS}
    if (override.get("model") or {}).get("path"):  # not the tokenizer and config of the policy's model
        base.model.tokenizer_path = base.model.hf_config_path = None
        override["model"] = {**override["model"], "path": located(override["model"]["path"])}
    base.ppo_max_token_len_per_gpu = actor["ppo_max_token_len_per_gpu"]
    base.loss_agg_mode, base.loss_scale_factor = "token-mean", None
    base.optim.total_training_steps = whole.trainer.total_training_steps
    whole.critic = OmegaConf.merge(base, override)
    return _resolved(whole.critic)
