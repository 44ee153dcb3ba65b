"""Resolve a composed config, and add verl's full config per policy (`policies`) and per critic (`critics`).

A policy's config has the settings of its loss, and on a CPU those that follow from its model: one of 135M parameters
trains 1.6 to 1.9 times as fast with instructions for bfloat16, of which small models gain nothing.

A critic takes strategy, engine, precision and token limits from the policy whose GPUs it shares, and its model too
unless `marl.critic` names another. Its loss is a mean over rows, since a row has one value.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from math import ceil, prod
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, flag_override
from omegaconf.errors import OmegaConfBaseException

from marl_verl.algo.algorithms.losses import Loss
from marl_verl.config.hardware import on_gpu, rollout_name
from marl_verl.config.parts import algorithm_of, loss_of
from marl_verl.config.placement import LARGE, Pool, check_shared_base, pools_of, use_shared_base
from marl_verl.config.policy_models import local_model, made_model
from marl_verl.config.schema import CRITIC_KEYS, CriticKeys, marl_of
from marl_verl.config.stored import copier, updates_per_batch
from marl_verl.config.verl_keys import OF_TEAM, key_paths, verl_configs
from marl_verl.errors import MarlError, check, user_error
from marl_verl.models.count import model_folder, parameters, shapes
from marl_verl.models.sources import ModelToMake, located
from marl_verl.options import build
from marl_verl.team import TeamConfig, source_of

LORA = ("lora", "lora_rank", "lora_alpha", "lora_adapter_path", "target_modules", "exclude_modules")
NOT_INHERITED = (*LORA, "use_fused_kernels")
"""Keys of a policy's `model` that its critic does not inherit: it has an adapter only if `marl.critic` sets one, and
verl's fused kernels need a language model's output layer."""
ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"
ANOTHER_LOSS = "choose another loss (marl.algorithm.options.loss)"
BUCKET = "rollout.checkpoint_engine.update_weights_bucket_megabytes"
SMALLEST_BUCKET, MIB = 64, 1 << 20
BFLOAT16_FLAGS = {"amx_bf16", "avx512_bf16"}
MOVED = "no_deepcopy_set_nodes"  # OmegaConf's flag: sections of another config are moved into this one


def resolve(config: DictConfig, team: TeamConfig) -> DictConfig:
    """The resolved config for the trainer. MarlError where it cannot be resolved, or is incompatible with a loss."""
    with user_error("config cannot be resolved", OmegaConfBaseException):
        copies: dict[str, Callable[[], DictConfig]] = {}  # loss -> copies of the config with its settings
        policies = OmegaConf.create({})
        for pool in pools_of(config, team):
            for name in pool.policies:
                called, loss = loss_of(team, name)
                if called not in copies:
                    copies[called] = copier(with_loss(config, called, loss))
                with flag_override(policies, MOVED, True):
                    policies[name] = _policy(copies[called](), team, name, pool)
        check_shared_base(policies, team)
        for name, policy in team.policies.items():
            if policy.teacher is not None:
                policy.teacher.serve(name, policies)
        critics = _critics(config, team, policies)
        whole = (next(iter(copies.values())) if copies else copier(config))()
        if policies:
            # verl reads a tokenizer and a model config from here; every policy has its own under `policies`
            names = [str(name) for name in policies]
            first = policies[next((name for name in names if team.policies[name].trained), names[0])]
            whole.actor_rollout_ref = first.actor_rollout_ref
            # validation and endpoints use the team's settings, not the first policy's
            for key in ("name", "temperature", "top_p", "top_k", *OF_TEAM):
                whole.actor_rollout_ref.rollout[key] = config.actor_rollout_ref.rollout[key]
            whole.algorithm.rollout_correction = first.algorithm.rollout_correction
        OmegaConf.resolve(whole)
        with flag_override(whole, MOVED, True):
            whole.policies, whole.critics = policies, critics
        return whole


def with_loss(config: DictConfig, name: str, loss: Loss) -> DictConfig:
    """Return a copy of a config with the loss's settings merged over it. MarlError for a conflict between the two."""
    for where, settings in ((ACTOR, loss.actor), (CORRECTION, loss.correction)):
        for key, value in key_paths(settings):
            value_set = None if isinstance(value, Mapping) else OmegaConf.select(config, f"{where}.{key}")
            # verl's default counts as not set
            if value_set is not None and value_set not in (value, OmegaConf.select(_verl_default(where), key)):
                instead = f"set marl.policies.<name>.actor.{key}" if where == ACTOR else ANOTHER_LOSS
                problem = f"'{where}.{key}' is {value_set!r}, but loss '{name}' sets it to {value!r}"
                raise MarlError(f"{problem}: leave it out, or {instead}")
    whole = copier(config)()
    set_values(whole.actor_rollout_ref.actor, loss.actor)
    whole.algorithm.rollout_correction = correction = OmegaConf.merge(
        _verl_default(CORRECTION), whole.algorithm.rollout_correction or {}, dict(loss.correction)
    )
    level = correction.rollout_is or correction.rollout_rs
    if correction.bypass_mode and level:
        message = f"'{CORRECTION}.bypass_mode' uses the rollout log-probs as the old ones, so that '{level}' (loss"
        raise MarlError(f"{message} '{name}') has no effect: set bypass_mode=false, or {ANOTHER_LOSS}")
    return whole


@functools.cache
def _verl_default(where: str) -> DictConfig:
    file = {ACTOR: "actor/actor.yaml", CORRECTION: "algorithm/rollout_correction.yaml"}[where]
    return OmegaConf.load(verl_configs() / file)  # type: ignore[return-value]


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


def _policy(whole: DictConfig, team: TeamConfig, name: str, pool: Pool) -> dict[str, Any]:
    """The resolved sections that the trainer merges over the whole config for a policy, made in `whole`, a copy of the
    config with the settings of its loss."""
    policy = team.policies[name]
    whole.trainer.n_gpus_per_node, whole.trainer.nnodes = pool.gpus, pool.nodes
    part = whole.actor_rollout_ref
    set_values(part, policy.override)
    part.model.path = located(part.model.path)
    part.rollout.name = rollout_name(name)
    part.rollout.n = 1  # verl divides by it to count episodes per task; for a team the sampler sets that number
    if part.model.tokenizer_path:  # else vLLM looks for stop strings in texts of the model folder's tokenizer
        served = {"vllm": {"tokenizer": part.model.tokenizer_path}}
        part.rollout.engine_kwargs = OmegaConf.merge(served, part.rollout.engine_kwargs)
    schedule, steps = marl_of(whole).schedule, whole.trainer.total_training_steps
    learns = [step for step in range(1, 1 + (steps or 0)) if schedule.learning([name], step)]
    part.actor.optim.total_training_steps = len(learns) or steps
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
    if part.ref.fsdp_config.get("mixed_precision") is None:  # verl's reference would compute in 16 bits
        part.ref.fsdp_config.mixed_precision = part.actor.fsdp_config.get("mixed_precision")
    template = whole.data.get("apply_chat_template_kwargs") or {}
    OmegaConf.resolve(part)
    for role in (part.actor, part.ref):  # verl reads the one of the engine, into which it copies the role's
        if (width := int(role.fsdp_config.get("ulysses_sequence_parallel_size") or 1)) > 1:
            role.ulysses_sequence_parallel_size = width
    return {
        "data": {"apply_chat_template_kwargs": {**template, **(policy.apply_chat_template_kwargs or {})}},
        "actor_rollout_ref": part,
        "algorithm": {"rollout_correction": OmegaConf.to_container(whole.algorithm.rollout_correction, resolve=True)},
        "trainer": {"n_gpus_per_node": pool.gpus, "nnodes": pool.nodes},
    }


def set_values(section: DictConfig, values: Mapping[str, Any]) -> None:
    """Set the values of a section, of mappings only the keys that they have."""
    for key, value in values.items():
        old = None if OmegaConf.is_interpolation(section, key) else section.get(key)
        if isinstance(value, Mapping) and isinstance(old, DictConfig):
            set_values(old, value)
        else:
            section[key] = value


def use_adapter(actor_rollout_ref: DictConfig) -> None:
    """Adjust the settings of servers and checkpoints for an adapter (W + (alpha / r) B A)."""
    if "dummy" in str(actor_rollout_ref.rollout.load_format):  # only the adapter is synced: servers load the base model
        actor_rollout_ref.rollout.load_format = "auto"
    # the base is on disk already. verl's `hf_model` of an adapter has parameter names that match no model:
    # transformers would load random weights from it without an error
    saved = actor_rollout_ref.actor.checkpoint
    saved.save_contents = [part for part in saved.save_contents if part in ("model", "optimizer", "extra")]
    saved.save_lora_only = True


def with_model_settings(actor_rollout_ref: DictConfig) -> None:
    """Fill in what follows from a policy's model on a CPU where the config leaves it out (null): the size of the
    buckets in which verl sends weights to the servers, the precision, and whether servers get an adapter merged."""
    tensors = shapes(model_folder(str(actor_rollout_ref.model.path)))
    largest = ceil(4 * max(map(prod, tensors.values()), default=0) / MIB)  # float32, as the training worker has it
    half = parameters(tensors) >= LARGE and bool(BFLOAT16_FLAGS & cpu_flags())
    dtype = {"param_dtype": "bf16" if half else "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    settings: dict[str, Any] = {
        BUCKET: max(SMALLEST_BUCKET, largest),
        "rollout.dtype": "bfloat16" if half else "float32",
        "actor.fsdp_config.mixed_precision": dtype,
    }
    for key, value in settings.items():
        if OmegaConf.select(actor_rollout_ref, key) is None:
            OmegaConf.update(actor_rollout_ref, key, value)
    lora = actor_rollout_ref.model.lora
    if lora.merge is None:
        # vLLM serves an adapter several times slower on a CPU. verl sends merged weights in bfloat16, which only
        # servers in bfloat16 round anyway.
        lora.merge = actor_rollout_ref.rollout.dtype == "bfloat16"


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The instruction sets of this machine's CPU; empty where /proc/cpuinfo does not list them."""
    file = Path("/proc/cpuinfo")
    flags = re.search(r"^flags\s*:(.*)$", file.read_text(encoding="utf-8") if file.exists() else "", re.MULTILINE)
    return frozenset(flags[1].split()) if flags else frozenset()


def _critics(config: DictConfig, team: TeamConfig, policies: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Critic -> its config for the trainer: "team", which sees all observations, or one for each trained policy, with
    its name. MarlError for an invalid or unused `marl.critic`."""
    section, scope = _critic_section(config), algorithm_of(team).advantage.wants_critic()
    name, trained = team.algorithm.name, team.trained
    build(CriticKeys, {key: section[key] for key in ("max_prompt_length",) if key in section}, "marl.critic")
    keys = [key for key, value in section.items() if value is not None]
    if scope is None and keys:
        remedy = "leave marl.critic out, or choose marl.algorithm.name=ippo, mappo or options.advantage.returns=gae"
        raise MarlError(f"'marl.critic.{keys[0]}' is set, but algorithm '{name}' has no critic: {remedy}")
    path = (section.get("model") or {}).get("path")
    if path and "${" not in str(path) and located(path) == path:
        local_model("marl.critic", path)
    if scope is None or not trained:
        return {}
    if scope == "policy" and team.sharing:
        problem = f"algorithm '{name}' has a critic per policy, but '{team.sharing[0]}' has base=shared"
        raise MarlError(f"{problem}: remove base, or use one critic for the team (marl.algorithm.name=mappo)")
    limit = section.get("max_prompt_length") or int(config.data.max_prompt_length) * len(team.agents)
    shared = {"scope": scope, "max_prompt_length": limit}
    hosts = {name: name for name in trained} if scope == "policy" else {"team": trained[0]}
    override = {key: value for key, value in section.items() if key not in CRITIC_KEYS}
    return {
        critic: {"critic": _critic(config, policies[host]["actor_rollout_ref"], override), "policy": host, **shared}
        for critic, host in hosts.items()
    }


def _critic_section(config: DictConfig) -> dict[str, Any]:
    section: Any = OmegaConf.to_container(config.marl.critic) if config.marl.get("critic") is not None else {}
    return {str(key): value for key, value in section.items()}


def _critic(config: DictConfig, policy: Mapping[str, Any], override: dict[str, Any]) -> DictConfig:
    """verl's resolved critic config: the user's settings (`override`) over the policy's over verl's defaults."""
    whole = copier(config)()
    whole.actor_rollout_ref = policy  # verl's critic interpolates batch sizes and epochs from it
    actor, base = policy["actor"], whole.critic
    base.strategy = actor["strategy"]
    base.fsdp = OmegaConf.merge(base.fsdp, actor["fsdp_config"])
    model = {key: value for key, value in policy["model"].items() if key not in NOT_INHERITED and key in base.model}
    base.model = OmegaConf.merge(base.model, model)
    if (override.get("model") or {}).get("path"):  # not the tokenizer and config of the policy's model
        base.model.tokenizer_path = base.model.hf_config_path = None
        override = {**override, "model": {**override["model"], "path": located(override["model"]["path"])}}
    for key in ("ppo_max_token_len_per_gpu", "ppo_micro_batch_size_per_gpu"):
        base[key] = actor[key]
    base.loss_agg_mode, base.loss_scale_factor = "token-mean", None
    base.optim.total_training_steps = whole.trainer.total_training_steps
    whole.critic = OmegaConf.merge(base, override)
    OmegaConf.resolve(whole.critic)
    return whole.critic


def made_critic(config: DictConfig, team: TeamConfig) -> tuple[str, ModelToMake] | None:
    """(key, model) where the section of the critic describes a model to make. MarlError as `made_model`."""
    section = _critic_section(config)
    made = source_of(section, "marl.critic")
    if made is None:
        return None
    path, seed = (section.get("model") or {}).get("path"), int(config.marl.run.seed)
    return made.name, made_model("marl.critic", made, path, team, list(team.agents), seed)
