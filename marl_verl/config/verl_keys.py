"""Keys of verl's config: those that a team passes on with their ranges, those that are dropped, and the rest.

The longest name that a key begins with decides. All keys that are neither passed on nor dropped are refused together.
verl accepts other values than those of `RANGES`, and trains wrongly, hangs or fails long after the start; other values
are checked by verl, vLLM, Ray and torch themselves.
"""

from __future__ import annotations

import copy
import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import yaml
from annotated_types import Ge, Gt, Interval

from marl_verl.config.recipe_file import verl_configs
from marl_verl.config.schema import Above, Least, Part, Share
from marl_verl.errors import MarlError, nearest
from marl_verl.extensions import missing_extras
from marl_verl.options import NonNegative, Positive, check_type

LEARNER = """strategy ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu
    ppo_epochs shuffle data_loader_seed loss_agg_mode loss_scale_factor optim checkpoint.save_contents
    checkpoint.load_contents"""
MODEL = """path hf_config_path tokenizer_path trust_remote_code custom_chat_template external_lib
    enable_gradient_checkpointing enable_activation_offload use_remove_padding lora_rank lora_alpha target_modules
    target_parameters exclude_modules lora_adapter_path use_liger use_fused_kernels fused_kernel_options
    override_config.attn_implementation override_config.moe_config override_config.attention_dropout
    override_config.max_position_embeddings override_config.use_cache"""
LOG_PROB = """strategy log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
    use_torch_compile ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size
    entropy_checkpointing pad_to_length fsdp_config"""
PASSED: Mapping[str, str] = {
    "actor_rollout_ref": "nccl_timeout",
    "actor_rollout_ref.actor": f"""{LEARNER} {LOG_PROB} clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c tau_pos
        tau_neg policy_loss entropy_coeff calculate_entropy use_kl_loss kl_loss_coef kl_loss_type use_fused_kernels
        use_remove_padding""",
    "actor_rollout_ref.ref": LOG_PROB,
    "actor_rollout_ref.model": f"{MODEL} lora.merge",
    "actor_rollout_ref.rollout": """name temperature top_k top_p full_determinism seed prompt_length response_length
        dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes free_cache_engine enable_sleep_mode
        tensor_model_parallel_size data_parallel_size expert_parallel_size max_num_batched_tokens max_model_len
        max_num_seqs enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format
        layered_summon log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
        disable_log_stats calculate_log_probs quantization engine_kwargs.vllm val_kwargs.temperature val_kwargs.top_p
        val_kwargs.top_k val_kwargs.do_sample agent.num_workers checkpoint_engine.update_weights_bucket_megabytes""",
    "critic": f"{LEARNER} cliprange_value fsdp forward_max_token_len_per_gpu forward_micro_batch_size_per_gpu",
    "critic.model": MODEL,
    "data": """train_files val_files train_max_samples val_max_samples prompt_key reward_fn_key max_prompt_length
        max_response_length train_batch_size val_batch_size shuffle seed dataloader_num_workers filter_overlong_prompts
        apply_chat_template_kwargs""",
    "algorithm": "rollout_correction",
    "reward": "num_workers custom_reward_function sandbox_fusion",
    "custom_reward_function": "path name reward_kwargs",
    "trainer": """project_name experiment_name logger n_gpus_per_node nnodes total_epochs total_training_steps save_freq
        test_freq val_before_train device resume_mode""",
    "transfer_queue": "enable backend.SimpleStorage",
    "ray_kwargs": "ray_init",
}
"""Section -> its keys, and sections below it with all their keys, that a team passes on to verl."""
DROPPED = """
    actor_rollout_ref.actor.profiler actor_rollout_ref.ref.profiler actor_rollout_ref.rollout.profiler critic.profiler
    global_profiler ray_kwargs.timeline_json_file actor_rollout_ref.rollout.trace actor_rollout_ref.rollout.prometheus
    transfer_queue.metrics transfer_queue.backend skip hydra
    trainer.log_val_generations trainer.rollout_data_dir trainer.validation_data_dir trainer.balance_batch
    trainer.max_critic_ckpt_to_keep trainer.default_hdfs_dir trainer.del_local_ckpt_after_load
    trainer.esi_redundant_time trainer.ray_wait_register_center_timeout trainer.use_legacy_worker_impl trainer.use_v1
    data.filter_overlong_prompts_workers data.validation_shuffle data.use_shm data.trust_remote_code
    data.return_raw_chat data.return_raw_input_ids data.return_full_prompt data.return_multi_modal_inputs
    data.gen_batch_size actor_rollout_ref.model.use_shm critic.model.use_shm
    actor_rollout_ref.model.tiled_mlp critic.model.tiled_mlp actor_rollout_ref.actor.use_prefix_grouper
    actor_rollout_ref.actor.freeze_vision_tower actor_rollout_ref.actor.calculate_sum_pi_squared
    actor_rollout_ref.actor.checkpoint.async_save actor_rollout_ref.actor.checkpoint.strict critic.checkpoint.async_save
    actor_rollout_ref.actor.rollout_n actor_rollout_ref.ref.rollout_n critic.rollout_n
    actor_rollout_ref.actor.optim.total_training_steps critic.optim.total_training_steps
    actor_rollout_ref.rollout.mode actor_rollout_ref.rollout.multi_stage_wake_up
    actor_rollout_ref.rollout.skip_tokenizer_init actor_rollout_ref.rollout.moe_load_balance_metrics_interval
    reward_model.launch_reward_fn_async reward.reward_kwargs.overlong_buffer_cfg.log
"""
"""Keys and sections that change nothing of what is trained."""
ENGINE = (
    "Megatron, VeOmni and others: policies are trained by verl's FSDP engine (actor_rollout_ref.actor.strategy=fsdp2)"
)
SERVER = "a team is served by vLLM (actor_rollout_ref.rollout.name=vllm), with the settings of rollout"
REWARD = "a function that scores answers is reward.custom_reward_function.path or marl.task.reward"
KL = "a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true with kl_loss_coef"
ESTIMATOR = "set marl.algorithm.name and marl.algorithm.options (docs/algorithms.md)"
CHECKPOINT = "set marl.checkpoint.keep and trainer.save_freq; marl-verl train --resume RUN continues a run"
INSTEAD: Mapping[str, str] = {
    ENGINE: """model_engine actor_rollout_ref.actor.megatron actor_rollout_ref.actor.engine critic.megatron
        critic.engine""",
    SERVER: "actor_rollout_ref.rollout.engine_kwargs actor_rollout_ref.rollout.disaggregation",
    "what an agent does is marl.workflow, and tools are functions that it calls (team.call)": """
        actor_rollout_ref.rollout.multi_turn
        actor_rollout_ref.rollout.agent data.tool_config_path data.function_tool_path""",
    "a judge is an agent of the team, with a frozen policy or an endpoint (docs/teams.md)": """reward_model
        reward.reward_model""",
    "agents see text only": "data.image_key data.video_key data.audio_key actor_rollout_ref.rollout.limit_images",
    REWARD: "reward.reward_manager reward.reward_kwargs",
    "set marl.schedule.mode=async": "trainer.v1 async_training",
    "register a task set (docs/plugins.md)": "data.custom_cls data.sampler data.datagen",
    KL: "algorithm.use_kl_in_reward algorithm.kl_ctrl algorithm.kl_penalty",
    ESTIMATOR: "algorithm",
    "marl.algorithm.name=ippo or mappo has critics, without a warm-up": "critic.enable trainer.critic_warmup",
    "set marl.sampler.filter={no_variance: true}": "algorithm.filter_groups",
    "set data.filter_overlong_prompts=true": "data.truncation",
    CHECKPOINT: """trainer.default_local_dir trainer.max_actor_ckpt_to_keep trainer.resume_from_path
        trainer.checkpoint_callback_class trainer.val_only""",
    "set marl.sampler.options and marl.validation.options": """actor_rollout_ref.rollout.n
        actor_rollout_ref.rollout.val_kwargs.n""",
    "set lora_rank, lora_alpha, target_modules": "actor_rollout_ref.model.lora critic.model.lora",
    "the model's servers would not have it: set model.path to a model whose config.json has it": (
        "actor_rollout_ref.model.override_config critic.model.override_config"
    ),
    "set reward.sandbox_fusion": "sandbox_fusion",
    "set the key of the same meaning of rollout or model": " ".join(
        f"actor_rollout_ref.rollout.engine_kwargs.vllm.{name}"
        for name in (
            *("model", "tensor_parallel_size", "data_parallel_size", "gpu_memory_utilization", "max_model_len"),
            *("max_num_seqs", "max_num_batched_tokens", "dtype", "load_format", "seed", "logprobs_mode"),
        )
    ),
    "set optim.lr, optim.weight_decay or optim.betas": " ".join(
        f"{part}.optim.override_optimizer_config.{name}"
        for part in ("actor_rollout_ref.actor", "critic")
        for name in ("lr", "weight_decay", "betas")
    ),
    "set optim.clip_grad": "actor_rollout_ref.actor.grad_clip critic.grad_clip",
    "set lr_scheduler_type": "actor_rollout_ref.actor.optim.warmup_style critic.optim.warmup_style",
    "set actor.ulysses_sequence_parallel_size": "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "a trained model is not only run forward": """actor_rollout_ref.actor.fsdp_config.forward_only
        critic.fsdp.forward_only""",
    "training with quantisation: marl-verl has none": " ".join(
        f"{part}.{name}"
        for part in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
        for name in ("qat", "turbo_config")
    ),
}
"""What replaces a key -> keys and sections. Other keys are refused with the nearest accepted one."""
PASS, DROP = "pass", "it changes nothing of what is trained"
VERDICTS: Mapping[str, str] = {
    **{f"{section}.{key}": PASS for section, keys in PASSED.items() for key in keys.split()},
    **dict.fromkeys(DROPPED.split(), DROP),
    **{key: reason for reason, keys in INSTEAD.items() for key in keys.split()},
}
PAGE = "docs/from-verl.md#keys"

Every = Literal[-1] | Positive
Strategy = Literal["fsdp2", "fsdp"]
PART = ("actor", "rollout", "model", "ref")
RANGES: tuple[tuple[Any, str], ...] = (  # type of the values, keys; `learner` is actor and critic
    (
        Positive,
        """trainer.total_epochs trainer.n_gpus_per_node trainer.nnodes data.train_batch_size data.max_prompt_length
        data.max_response_length rollout.agent.num_workers rollout.tensor_model_parallel_size
        rollout.data_parallel_size rollout.expert_parallel_size rollout.prompt_length rollout.response_length
        rollout.max_num_seqs rollout.max_num_batched_tokens rollout.log_prob_max_token_len_per_gpu
        learner.ppo_epochs learner.ppo_mini_batch_size learner.ppo_max_token_len_per_gpu
        learner.ulysses_sequence_parallel_size actor.fsdp_config.entropy_from_logits_chunk_size
        critic.forward_max_token_len_per_gpu ref.log_prob_max_token_len_per_gpu
        transfer_queue.backend.SimpleStorage.num_data_storage_units reward.sandbox_fusion.max_concurrent
        reward.sandbox_fusion.memory_limit_mb actor_rollout_ref.nccl_timeout""",
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
        """trainer.test_freq trainer.save_freq data.train_max_samples data.val_max_samples rollout.top_k
        rollout.val_kwargs.top_k actor.fsdp_config.fsdp_size critic.fsdp.fsdp_size""",
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
        critic.cliprange_value rollout.temperature model.lora_alpha critic.model.lora_alpha""",
    ),
    (Above | None, "actor.clip_ratio_low actor.clip_ratio_high learner.loss_scale_factor actor.policy_loss.dro_beta"),
    (Least, "actor.kl_loss_coef actor.policy_loss.ppo_kl_coef rollout.val_kwargs.temperature"),
    (float, "actor.entropy_coeff actor.policy_loss.clip_cov_lb actor.policy_loss.clip_cov_ub"),
    (NonNegative, "rollout.seed actor.fsdp_config.seed"),
    (NonNegative | None, "data.seed learner.data_loader_seed"),
    (Annotated[int, Interval(ge=0, le=256)], "data.dataloader_num_workers"),
    (Annotated[int, Interval(ge=1, le=1024)], "reward.num_workers"),
    (Annotated[float, Gt(1)], "actor.clip_ratio_c"),
    (Annotated[int, Interval(ge=0, le=512)], "model.lora_rank critic.model.lora_rank"),
    (Annotated[int, Ge(-1)] | None, "learner.optim.lr_warmup_steps"),
    (Above | str, "algorithm.rollout_correction.rollout_is_threshold"),
    (Literal["token", "sequence"] | None, "algorithm.rollout_correction.rollout_is"),
    (Literal["ppo_clip"], "algorithm.rollout_correction.loss_type"),
    (Strategy, "learner.strategy ref.strategy"),
    (Literal["constant", "cosine"], "learner.optim.lr_scheduler_type"),
    (Literal["vllm"], "rollout.name"),
    (Literal["processed_logprobs"], "rollout.logprobs_mode"),
    (Literal["cpu", "cuda", "npu"], "trainer.device"),
    (Literal["disable", "auto"], "trainer.resume_mode"),
    (Literal[True], "transfer_queue.enable"),
    (str | None, "trainer.experiment_name reward.sandbox_fusion.url ray_kwargs.ray_init.address"),
    (str, "trainer.project_name reward.custom_reward_function.name"),
    (str | list | None, "model.target_modules model.exclude_modules critic.model.target_modules"),
    (str | None, "model.tokenizer_path model.hf_config_path model.custom_chat_template model.lora_adapter_path"),
    (str | None, "model.external_lib critic.model.path critic.model.tokenizer_path"),
    (bool | None, "model.lora.merge model.use_liger critic.model.use_liger"),
    (  # Hydra reads `no` as a text, which would count as true
        bool,
        """actor.use_remove_padding actor.use_fused_kernels actor.use_dynamic_bsz actor.pad_to_length ref.pad_to_length
        actor.fsdp_config.pad_to_length critic.fsdp.pad_to_length ref.use_torch_compile""",
    ),
    (  # verl saves no optimizer for a name that it does not know
        list[Literal["model", "optimizer", "extra", "hf_model"]],
        "learner.checkpoint.save_contents learner.checkpoint.load_contents",
    ),
    (
        Mapping | None,
        """actor.fsdp_config.mixed_precision ref.fsdp_config.mixed_precision critic.fsdp.mixed_precision
        ray_kwargs.ray_init.runtime_env learner.optim.override_optimizer_config""",
    ),
)


def _keys(names: str) -> Iterator[str]:
    for name in names.split():
        first, _, rest = name.partition(".")
        if first == "learner":
            yield from (f"actor_rollout_ref.actor.{rest}", f"critic.{rest}")
        else:
            yield f"actor_rollout_ref.{name}" if first in PART else name


ALLOWED: Mapping[str, Any] = {key: hint for hint, names in RANGES for key in _keys(names)}
"""Key of a composed config -> the type of its values."""
PRECISION = dict.fromkeys(("param_dtype", "reduce_dtype", "buffer_dtype"))
RUNTIME = dict.fromkeys(("env_vars", "working_dir", "py_modules", "pip", "uv", "conda", "excludes", "config"))
RAY_INIT = dict.fromkeys(
    (
        *("address", "num_cpus", "num_gpus", "resources", "labels", "object_store_memory", "include_dashboard"),
        *("log_to_driver", "namespace", "logging_level", "_system_config"),
    )
)
ADDED: Mapping[str, Any] = {
    **{f"actor_rollout_ref.{part}.fsdp_config.mixed_precision": PRECISION for part in ("actor", "ref")},
    "critic.fsdp.mixed_precision": PRECISION,
    "actor_rollout_ref.rollout.enable_sleep_mode": True,
    **dict.fromkeys(("actor_rollout_ref.model.target_parameters", "critic.model.target_parameters")),
    **{f"ray_kwargs.ray_init.{key}": None for key in RAY_INIT},
    "ray_kwargs.ray_init.runtime_env": RUNTIME,
}
"""Keys that the composed config lacks and that a run reads -> default, of a mapping its keys."""
OPEN = re.compile(r"(.+\.)?(engine_kwargs\.\w+|override_config|override_optimizer_config)(\..+)?")
"""Free-form sections of verl's config: their keys are those of vLLM, of a model and of an optimiser."""


def verdict(key: str) -> str:
    """`PASS`, `DROP`, or what to use instead of a key of verl."""
    names = key.split(".")
    prefixes = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((VERDICTS[prefix] for prefix in prefixes if prefix in VERDICTS), "") or _nearest(key)


def _nearest(key: str) -> str:
    """The accepted key of the same section, or of one in it, whose last name is like that of `key`."""
    section, _, last = key.rpartition(".")
    accepted = [name for name, known in VERDICTS.items() if known == PASS and name.startswith(section)]
    ends = {name.rpartition(".")[2]: name for name in accepted}
    same_words = [end for end in ends if sorted(end.split("_")) == sorted(last.split("_"))]
    close = same_words or difflib.get_close_matches(last, ends, n=1, cutoff=0.6)
    return f"did you mean '{ends[close[0]]}'?" if close else "a team does not use it"


def with_added(valid: dict[str, Any]) -> dict[str, Any]:
    """A copy of verl's sections (plain containers) with the keys of `ADDED`."""
    valid = copy.deepcopy(valid)
    for key, default in ADDED.items():
        *sections, last = key.split(".")
        section: Any = functools.reduce(lambda node, name: node.setdefault(name, {}), sections, valid)
        if section.get(last) is None:
            section[last] = default
    return valid


def check_keys(content: Any, valid: Any, key: str, where: str, allowed: Mapping[str, Any] = ALLOWED) -> None:
    """MarlError for the first key that `valid` lacks, or value of another type than that of `ALLOWED` or its default.

    Args:
        key: verl's name of the section.
        where: its name in the recipe, for messages.
    """
    if isinstance(content, str) and (content == "???" or "${" in content):
        return  # its type is not known yet
    if (hint := allowed.get(key)) is not None:
        if hint is str and not str(content).strip():
            raise MarlError(f"'{where}' is empty. Give it a value.")
        check_type(content, hint, where)
        for index, element in enumerate(content) if get_origin(hint) is list else ():
            check_type(element, get_args(hint)[0], f"{where}[{index}]")
    elif isinstance(valid, Mapping) and (valid or content is not None):
        check_type(content, Mapping, where)
    elif isinstance(valid, bool | int | float | list):
        check_type(content, type(valid), where)
    elif isinstance(valid, str) and "${" not in valid and isinstance(content, Mapping | list):
        check_type(content, str, where)
    for name, value in content.items() if isinstance(content, Mapping) else ():
        path, below = (f"{prefix}.{name}" if prefix else str(name) for prefix in (where, key))
        if isinstance(valid, Mapping) and name in valid:
            check_keys(value, valid[name], below, path, allowed)
        elif OPEN.fullmatch(below) or not valid or isinstance(valid, str):
            check_keys(value, None, below, path, allowed)
        else:
            extra = f"pip install 'marl-verl[{name}]' adds it" if name in missing_extras() else ""
            raise MarlError(f"unknown key '{path}': {extra or nearest(str(name), map(str, valid))}")


def key_paths(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every key of nested mappings, including keys whose value is a mapping."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path, value
            yield from key_paths(value, path)


def at(section: Any, key: str) -> Any:
    """The value of a dotted key of nested dicts; None where there is none."""
    for name in key.split("."):
        section = section.get(name) if isinstance(section, dict) else None
    return section


@functools.cache
def verl_defaults() -> dict[str, Any]:
    """verl's own config, in which an interpolation is a text."""
    text = (verl_configs() / "_generated_ppo_trainer.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
