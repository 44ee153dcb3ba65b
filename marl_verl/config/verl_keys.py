"""Keys of verl's config: those that a team passes on with their ranges, and what replaces others.

The longest name that a key begins with decides. All keys that are not passed on are refused together.
verl accepts other values than those of `PASSED`, and trains wrongly, hangs or fails long after the start; other values
are checked by verl, vLLM, Ray and torch themselves.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.schema import CRITIC_KEYS, Above, Part
from marl_verl.errors import MarlError, nearest, shown, user_error
from marl_verl.extensions import missing_extras, pip_line
from marl_verl.options import NonNegative, Positive, Share, Small, check_type
from marl_verl.team import ALL_KEYS

Every = Literal[-1] | Positive
OF_TEAM = ("val_kwargs", "agent")  # sections of `rollout` that the policies of a team have in common
KL_TYPES = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")  # k3+ has the value of k3 and the gradient of k2
EXPANDED: Mapping[str, tuple[str, ...]] = {
    **{name: (f"actor_rollout_ref.{name}",) for name in ("actor", "rollout", "model", "ref")},
    "learner": ("actor_rollout_ref.actor", "critic"),
    "forward": ("actor_rollout_ref.actor", "actor_rollout_ref.ref"),
    "models": ("actor_rollout_ref.model", "critic.model"),
    "vllm": ("actor_rollout_ref.rollout.engine_kwargs.vllm",),
    "engine": ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"),
}
"""First name of a key in `PASSED` -> the sections that it stands for."""
PASSED: tuple[tuple[Any, str], ...] = (
    (
        Any,
        """learner.shuffle learner.loss_agg_mode learner.optim learner.use_dynamic_bsz forward.fsdp_config critic.fsdp
        forward.log_prob_micro_batch_size_per_gpu forward.log_prob_max_token_len_per_gpu
        forward.entropy_checkpointing forward.log_prob_use_dynamic_bsz forward.entropy_from_logits_with_chunking
        forward.entropy_from_logits_chunk_size actor.policy_loss actor.calculate_entropy actor.use_kl_loss
        model.path models.trust_remote_code models.enable_gradient_checkpointing models.enable_activation_offload
        models.use_remove_padding models.target_parameters models.use_fused_kernels models.fused_kernel_options
        models.override_config.attn_implementation models.override_config.moe_config
        models.override_config.use_cache models.override_config.attention_dropout
        models.override_config.max_position_embeddings rollout.dtype rollout.enforce_eager
        rollout.cudagraph_capture_sizes rollout.free_cache_engine rollout.enable_sleep_mode
        rollout.enable_chunked_prefill rollout.enable_prefix_caching rollout.scheduling_policy rollout.load_format
        rollout.layered_summon rollout.log_prob_use_dynamic_bsz rollout.disable_log_stats
        rollout.calculate_log_probs rollout.quantization rollout.engine_kwargs.vllm rollout.val_kwargs.do_sample
        data.shuffle data.filter_overlong_prompts data.apply_chat_template_kwargs algorithm.rollout_correction
        trainer.logger trainer.val_before_train reward.num_workers
        transfer_queue.backend.SimpleStorage ray_kwargs.ray_init""",
    ),
    (
        Positive,
        """trainer.total_epochs trainer.n_gpus_per_node trainer.nnodes data.train_batch_size data.max_prompt_length
        data.max_response_length rollout.agent.num_workers rollout.tensor_model_parallel_size
        rollout.data_parallel_size rollout.expert_parallel_size rollout.prompt_length rollout.response_length
        rollout.max_num_seqs rollout.max_num_batched_tokens rollout.log_prob_max_token_len_per_gpu
        learner.ppo_epochs learner.ppo_mini_batch_size learner.ppo_max_token_len_per_gpu
        forward.ulysses_sequence_parallel_size actor.fsdp_config.entropy_from_logits_chunk_size
        critic.forward_max_token_len_per_gpu ref.log_prob_max_token_len_per_gpu
        transfer_queue.backend.SimpleStorage.num_data_storage_units""",
    ),
    (
        Positive | None,
        """trainer.total_training_steps data.val_batch_size learner.ppo_micro_batch_size_per_gpu rollout.max_model_len
        rollout.log_prob_micro_batch_size_per_gpu rollout.checkpoint_engine.update_weights_bucket_megabytes
        rollout.engine_kwargs.vllm.kv_cache_memory_bytes ref.log_prob_micro_batch_size_per_gpu
        critic.forward_micro_batch_size_per_gpu ray_kwargs.ray_init.num_cpus ray_kwargs.ray_init.num_gpus
        transfer_queue.backend.SimpleStorage.total_storage_size""",
    ),
    (
        Every,
        """trainer.test_freq trainer.save_freq rollout.top_k rollout.val_kwargs.top_k actor.fsdp_config.fsdp_size
        critic.fsdp.fsdp_size""",
    ),
    (
        Part,
        """learner.optim.lr rollout.top_p rollout.val_kwargs.top_p rollout.gpu_memory_utilization
        actor.policy_loss.clip_cov_ratio actor.policy_loss.kl_cov_ratio""",
    ),
    (Share, "learner.optim.weight_decay learner.optim.lr_warmup_steps_ratio"),
    (Share | None, "learner.optim.min_lr_ratio"),
    (
        Above,
        """learner.optim.clip_grad learner.optim.num_cycles actor.clip_ratio actor.tau_pos actor.tau_neg
        critic.cliprange_value rollout.temperature models.lora_alpha""",
    ),
    (Above | None, "actor.clip_ratio_low actor.clip_ratio_high learner.loss_scale_factor actor.policy_loss.dro_beta"),
    (Small, "actor.kl_loss_coef actor.policy_loss.ppo_kl_coef rollout.val_kwargs.temperature"),
    (float, "actor.entropy_coeff"),
    (NonNegative, "rollout.seed actor.fsdp_config.seed data.dataloader_num_workers models.lora_rank"),
    (NonNegative | None, "data.seed learner.data_loader_seed"),
    (Annotated[float, Gt(1)], "actor.clip_ratio_c"),
    (Annotated[int, Ge(-1)] | None, "learner.optim.lr_warmup_steps"),
    (Above | str, "algorithm.rollout_correction.rollout_is_threshold"),
    (Literal["token", "sequence"] | None, "algorithm.rollout_correction.rollout_is"),
    (Literal["ppo_clip"], "algorithm.rollout_correction.loss_type"),
    (Literal["fsdp2", "fsdp"], "learner.strategy ref.strategy"),
    (Literal["constant", "cosine"], "learner.optim.lr_scheduler_type"),
    (Literal[(*KL_TYPES, *(f"{name}+" for name in KL_TYPES))], "actor.kl_loss_type"),
    (Literal["vllm"], "rollout.name"),
    (Literal["processed_logprobs"], "rollout.logprobs_mode"),
    (Literal["cpu", "cuda", "npu"], "trainer.device"),
    (Literal["disable", "auto"], "trainer.resume_mode"),
    (Literal[True], "transfer_queue.enable"),
    (str, "trainer.project_name"),
    (
        str | None,
        """trainer.experiment_name ray_kwargs.ray_init.address critic.model.path models.tokenizer_path
        models.hf_config_path models.custom_chat_template models.lora_adapter_path models.external_lib""",
    ),
    (str | list | None, "models.target_modules models.exclude_modules"),
    (bool | None, "model.lora.merge models.use_liger"),
    (  # Hydra reads `no` as a text, which would count as true
        bool,
        "actor.use_dynamic_bsz forward.pad_to_length actor.fsdp_config.pad_to_length critic.fsdp.pad_to_length",
    ),
    (  # verl saves no optimizer for a name that it does not know
        list[Literal["model", "optimizer", "extra", "hf_model"]],
        "learner.checkpoint.save_contents learner.checkpoint.load_contents",
    ),
    (Mapping | None, "engine.mixed_precision ray_kwargs.ray_init.runtime_env learner.optim.override_optimizer_config"),
)
"""Type of the values -> keys, and sections with all their keys, that a team passes on to verl."""
PASS, UNUSED = "pass", "a team does not use it"
INSTEAD: Mapping[str, str] = {
    "policies are trained by verl's FSDP engine": "model_engine learner.megatron learner.engine",
    "a team is served by vLLM": "rollout.engine_kwargs rollout.disaggregation",
    "what an agent does is marl.workflow": """
        rollout.multi_turn rollout.agent data.tool_config_path data.function_tool_path""",
    "a judge is an agent, with a frozen policy or an endpoint": "reward_model reward.reward_model",
    "a function that scores answers is marl.task.reward": """
        reward.reward_manager reward.reward_kwargs reward.custom_reward_function custom_reward_function""",
    "it is one of marl.task.options of task set verl": """
        data.train_files data.val_files data.prompt_key data.reward_fn_key data.train_max_samples data.val_max_samples
        reward.sandbox_fusion sandbox_fusion""",
    "set marl.schedule.mode=async": "trainer.v1 async_training",
    "set actor_rollout_ref.actor.use_kl_loss=true and kl_loss_coef": """
        algorithm.use_kl_in_reward algorithm.kl_ctrl algorithm.kl_penalty""",
    "set marl.algorithm.name and marl.algorithm.options": "algorithm critic.enable",
    "critics have no warm-up": "trainer.critic_warmup",
    "set marl.policies.NAME.teacher": "distillation",
    "set marl.run.repeatable": "rollout.full_determinism",
    "set optim.clip_grad": "learner.grad_clip",
    "set algorithm.rollout_correction": "algorithm.rollout_is algorithm.rollout_is_threshold actor.tis_imp_ratio_cap",
    "set marl.sampler.filter={no_variance: true}": "algorithm.filter_groups",
    "set data.filter_overlong_prompts=true": "data.truncation",
    "set marl.run, marl.checkpoint.keep and trainer.save_freq": """
        trainer.default_local_dir trainer.max_actor_ckpt_to_keep trainer.resume_from_path trainer.val_only""",
    "set marl.sampler.options and marl.validation.options": "rollout.n rollout.val_kwargs.n",
    "set lora_rank, lora_alpha, target_modules": "models.lora",
    "set model.path to a model that has it": "models.override_config",
    "set the key of the same meaning of rollout or model": """vllm.model vllm.tensor_parallel_size
        vllm.data_parallel_size vllm.gpu_memory_utilization vllm.max_model_len vllm.max_num_seqs
        vllm.max_num_batched_tokens vllm.dtype vllm.load_format vllm.seed vllm.logprobs_mode""",
    "set it in model": "actor.use_remove_padding actor.use_fused_kernels",
    "set fsdp_config.use_torch_compile": "forward.use_torch_compile",
    "set ppo_micro_batch_size_per_gpu": "actor.ppo_micro_batch_size critic.ppo_micro_batch_size",
    UNUSED: """actor.fsdp_config.forward_only critic.fsdp.forward_only engine.qat engine.turbo_config
        learner.optim.total_training_steps""",
}
"""What replaces a key -> keys and sections."""


def expanded(names: str) -> Iterator[str]:
    """The keys of a table's line; its first names stand for those of `EXPANDED`."""
    for name in names.split():
        first, dot, rest = name.partition(".")
        yield from (f"{section}.{rest}" for section in EXPANDED[first]) if dot and first in EXPANDED else (name,)


VERDICTS: Mapping[str, str] = {
    **{key: PASS for _, names in PASSED for key in expanded(names)},
    **{key: reason for reason, names in INSTEAD.items() for key in expanded(names)},
}
PAGE = "docs/from-verl.md#keys"
MOST = 5  # refused keys in a message
ALLOWED: Mapping[str, Any] = {key: hint for hint, names in PASSED if hint is not Any for key in expanded(names)}
"""Key of a composed config -> the type of its values."""
ACTS_ONLY = {**ALLOWED, "actor_rollout_ref.rollout.temperature": Small}
"""As `ALLOWED`, for a policy that is not trained: it may act greedily."""
PRECISION = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"))
RAY_INIT = (
    *("address", "num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "include_dashboard"),
    *("log_to_driver", "namespace", "logging_level", "_system_config", "runtime_env"),
)
ADDED: Mapping[str, Any] = {
    **{f"actor_rollout_ref.{part}.fsdp_config.mixed_precision": PRECISION for part in ("actor", "ref")},
    "critic.fsdp.mixed_precision": PRECISION,
    "actor_rollout_ref.rollout.enable_sleep_mode": True,
    **dict.fromkeys(("actor_rollout_ref.model.target_parameters", "critic.model.target_parameters")),
    **{f"ray_kwargs.ray_init.{key}": None for key in RAY_INIT},
}
"""Keys that the composed config lacks and that a run reads -> default, of a mapping its keys."""
OPEN = re.compile(r"(.+\.)?(engine_kwargs\.\w+|override_config|override_optimizer_config|runtime_env)(\..+)?")
"""Free-form sections of verl's config: their keys are those of vLLM, of a model, of an optimiser and of Ray."""


def verdict(key: str, verdicts: Mapping[str, str] = VERDICTS) -> str:
    """`PASS`, or what to use instead of a key of verl."""
    names = key.split(".")
    prefixes = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((verdicts[prefix] for prefix in prefixes if prefix in verdicts), UNUSED)


def check_verl(
    config: DictConfig,
    content: Mapping[str, Any],
    defaults: Mapping[str, Any],
    trained: bool,
    stored: DictConfig | None,
) -> None:
    """MarlError for an invalid key or value of verl (`settings_of`), or with all keys that no team uses. Those that the
    `stored` config of a run has already are valid: an older version wrote them."""
    settings = settings_of(content, defaults, trained)
    before: Any = None if stored is None else OmegaConf.to_container(stored)
    had = settings_of(before, defaults, trained) if before else []
    for key, name, value in settings:
        if isinstance(value, str) and "${" in value and key in ALLOWED:
            with user_error(f"'{name}' cannot be resolved", OmegaConfBaseException):
                resolved = OmegaConf.select(config, name)
            plain = OmegaConf.to_container(resolved) if OmegaConf.is_config(resolved) else resolved
            check_type(plain, ALLOWED[key], name)
    new = (setting for setting in settings if setting not in had)
    unused = [f"{name}={shown(value)} ({why})" for key, name, value in new if (why := verdict(key)) != PASS]
    if unused:
        more = f" and {len(unused) - MOST} more" if len(unused) > MOST else ""
        raise MarlError(f"a team has no use for {', '.join(unused[:MOST])}{more}: remove them, see {PAGE}")


def settings_of(
    content: Mapping[str, Any], defaults: Mapping[str, Any], trained: bool = True
) -> list[tuple[str, str, Any]]:
    """(verl's key, its name in the recipe, value) of what a composed config, its policies and its critic set of verl's
    keys. MarlError for an unknown key, or a value outside its range.

    `content` is the config as plain containers, `defaults` that of a recipe which sets nothing (`defaults_of`);
    `trained`: whether policies are trained that are not frozen.
    """
    marl = content["marl"]
    settings = [*changed({**content, "marl": None}, {**defaults, "marl": None})]
    sections = [("actor_rollout_ref", f"marl.policies.{name}", part) for name, part in marl["policies"].items()]
    for key, where, section in (*sections, ("critic", "marl.critic", marl.get("critic") or {})):
        if isinstance(section, Mapping):  # else `read_team` refuses it
            allowed = ACTS_ONLY if key != "critic" and (section.get("frozen") or not trained) else ALLOWED
            own = CRITIC_KEYS if key == "critic" else ALL_KEYS
            settings += changed(section, defaults[key] | {name: section.get(name) for name in own}, key, where, allowed)
    return settings


def changed(
    content: Any, default: Any, key: str = "", where: str = "", allowed: Mapping[str, Any] = ALLOWED
) -> Iterator[tuple[str, str, Any]]:
    """Yield (verl's key, its name in the recipe, value) of the values that differ from their defaults.

    `key` is verl's name of the section, `where` its name in the recipe. MarlError for a key that `default` lacks, or a
    value of another type than that of `allowed` or its default.
    """
    if type(content) is type(default) and content == default:
        return
    if not isinstance(content, str) or not (content == "???" or "${" in content):  # its type is not known yet
        check_type(content, allowed.get(key) or _type_of(default), where)
    if not isinstance(content, Mapping):
        yield key, where, content
        return
    for name, value in content.items():
        path, below = (f"{prefix}.{name}" if prefix else str(name) for prefix in (where, key))
        known = isinstance(default, Mapping) and name in default
        if not known and isinstance(default, Mapping) and default and not OPEN.fullmatch(below):
            hint = pip_line(str(name)) if name in missing_extras() else nearest(str(name), map(str, default))
            instead = VERDICTS.get(below, UNUSED)  # of the key itself: another one of its section is a typo
            raise MarlError(f"unknown key '{path}': {hint if instead in (PASS, UNUSED) else instead}")
        yield from changed(value, default[name] if known else None, below, path, allowed)


def _type_of(default: Any) -> Any:
    """The type of the values of a key with this default."""
    if isinstance(default, Mapping):
        return Mapping if default else Mapping | None
    return type(default) if isinstance(default, bool | int | float | list) else Any


def key_paths(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every key of nested mappings, including keys whose value is a mapping."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path, value
            yield from key_paths(value, path)


def verl_configs() -> Path:
    """The folder of verl's config, found without importing verl (seconds)."""
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        raise MarlError("verl is not installed: pip install 'marl-verl[cpu]' or 'marl-verl[vllm]'")
    return Path(verl.origin).parent / "trainer" / "config"
