"""The allowed values of config keys, in one table. verl accepts other values too, and fails or mistrains later.

A name that begins with `actor.`, `rollout.`, `model.` or `ref.` is a key of `actor_rollout_ref` and of each policy's
section, and `learner.` means both `actor_rollout_ref.actor` and `critic`, thus also for `marl.critic`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Interval
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.compose import VERL_OPEN, check_keys, key_paths, unknown_key
from marl_verl.config.engine_arguments import check_engine_arguments
from marl_verl.errors import MarlError, nearest
from marl_verl.extensions import names
from marl_verl.options import NonNegative, Positive, check_type
from marl_verl.team import TeamConfig, own_keys

CRITIC_KEYS = ("scope", *names("model"), "max_prompt_length")
"""Keys of `marl.critic` that are not keys of verl's `critic`."""

Above = Annotated[float, Gt(0)]
Least = Annotated[float, Ge(0)]
Share = Annotated[float, Interval(ge=0, le=1)]
Part = Annotated[float, Interval(gt=0, le=1)]
Below = Annotated[float, Interval(ge=0, lt=1)]
Every = Literal[-1] | Positive
Tasks = Annotated[int, Interval(ge=1, le=1_000_000)]
Dtype = Literal["fp32", "float32", "bf16", "bfloat16", "fp16", "float16"]
Saved = Literal["model", "optimizer", "extra", "hf_model"]
Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
Kl = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3", "kl+", "k1+", "abs+", "low_var_kl+", "k3+"]
Loss = Literal[
    "vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dro", "cispo",
    "bypass_mode",
]  # fmt: skip
Format = Literal[
    "auto", "dummy", "hf", "pt", "safetensors", "fastsafetensors", "npcache", "mistral", "bitsandbytes", "tensorizer",
    "sharded_state", "runai_streamer", "runai_streamer_sharded", "gguf",
]  # fmt: skip
Null = type(None)
Executor = Literal["uni", "mp", "ray", "external_launcher"]
Attention = Literal["sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"]
SECTIONS = "actor_rollout_ref actor rollout model ref actor.optim actor.fsdp_config actor.policy_loss actor.checkpoint"

RANGES: tuple[tuple[str, Any, str], ...] = (  # keys, the type of their values, why or what to do instead
    # sections
    ("trainer data algorithm critic ray_kwargs ray_kwargs.ray_init transfer_queue", Mapping, "leave it out"),
    ("transfer_queue.backend transfer_queue.backend.SimpleStorage", Mapping, "leave it out"),
    (f"{SECTIONS} rollout.agent rollout.val_kwargs rollout.checkpoint_engine", Mapping, "leave it out"),
    ("rollout.engine_kwargs rollout.engine_kwargs.vllm model.override_config", Mapping, "leave it out"),
    ("critic.optim critic.model critic.fsdp", Mapping, "leave it out"),
    ("marl.critic marl.pools marl.schedule actor.fsdp_config.mixed_precision", Mapping | None, ""),
    # the run
    ("trainer.total_epochs data.train_batch_size", Positive, ""),
    ("trainer.total_training_steps", Positive | None, "null for trainer.total_epochs over the tasks"),
    ("data.filter_overlong_prompts data.shuffle", bool, ""),
    ("data.max_prompt_length data.max_response_length", Positive, ""),
    ("reward.num_workers", Annotated[int, Interval(ge=1, le=1024)], ""),
    ("marl.run.merge_turns", bool, ""),
    ("marl.task.train_size marl.task.test_size", Tasks, ""),
    ("marl.run.seed marl.run.keep_rows marl.run.keep_journals marl.rollout.keep_episodes", NonNegative, ""),
    ("data.dataloader_num_workers", Annotated[int, Interval(ge=0, le=256)], "processes"),
    ("data.seed learner.data_loader_seed", NonNegative | None, ""),
    ("data.train_max_samples data.val_max_samples", Every, "-1 for all"),
    ("trainer.v1.trainer_mode", Literal["team"], "set marl.schedule.mode to sync or async"),
    ("reward.sandbox_fusion.url", str | None, ""),
    ("reward.sandbox_fusion.max_concurrent reward.sandbox_fusion.memory_limit_mb", Positive, ""),
    ("reward.custom_reward_function.name", str, ""),
    ("algorithm.rollout_correction.rollout_is_threshold", Above | str | None, ""),
    ("marl.run.journal_tasks marl.rollout.episode_tokens data.val_batch_size", Positive | None, ""),
    ("marl.rollout.max_failed_share", Share, ""),
    ("marl.rollout.act_seconds marl.rollout.call_seconds marl.rollout.step_seconds", Above | None, ""),
    ("marl.rollout.episode_seconds", Above | None, ""),
    ("marl.checkpoint.keep", Positive, ""),
    ("trainer.test_freq trainer.save_freq", Every, "-1 for never"),
    ("trainer.project_name marl.run.dir", str, ""),
    ("trainer.experiment_name", str | None, ""),
    ("trainer.resume_mode", Literal["disable", "auto"], "a run is continued by marl-verl train --resume RUN"),
    # devices
    ("trainer.device", Literal["cpu", "cuda", "npu"], ""),
    ("trainer.n_gpus_per_node trainer.nnodes rollout.agent.num_workers", Positive, ""),
    ("rollout.tensor_model_parallel_size rollout.data_parallel_size", Positive, "GPUs of a server"),
    ("rollout.expert_parallel_size learner.ulysses_sequence_parallel_size", Positive, ""),
    ("transfer_queue.backend.SimpleStorage.num_data_storage_units", Positive, ""),
    ("ray_kwargs.ray_init.num_cpus ray_kwargs.ray_init.num_gpus", Positive | None, ""),
    ("transfer_queue.backend.SimpleStorage.total_storage_size", Positive | None, ""),
    ("ray_kwargs.ray_init.object_store_memory", Annotated[int, Ge(75 << 20)] | None, "bytes; Ray needs 75 MiB"),
    ("ray_kwargs.ray_init.runtime_env", Mapping | None, ""),
    ("ray_kwargs.ray_init.address", str | None, ""),
    ("transfer_queue.enable", Literal[True], "the rows of a team are in TransferQueue"),
    ("data.custom_cls.name", Literal["TaskDataset"], "a team's tasks are marl.task"),
    ("rollout.gpu_memory_utilization", Part, "the share of a GPU's memory for a server"),
    ("actor.fsdp_config.fsdp_size critic.fsdp.fsdp_size", Every, "-1 for all ranks"),
    # the optimiser
    ("learner.optim.lr", Part, "a policy that is not trained has frozen=true"),
    ("learner.optim.weight_decay", Share, ""),
    ("learner.optim.betas", tuple[Below, Below], ""),
    ("learner.optim.clip_grad learner.optim.num_cycles", Above, ""),
    ("learner.optim.lr_warmup_steps", Annotated[int, Ge(-1)] | None, "-1 for lr_warmup_steps_ratio"),
    ("learner.optim.lr_warmup_steps_ratio", Share, ""),
    ("learner.optim.min_lr_ratio", Share | None, ""),
    ("learner.optim.lr_scheduler_type", Literal["constant", "cosine"], ""),
    ("learner.optim.warmup_style", Null, "set lr_scheduler_type"),
    ("learner.optim.override_optimizer_config", Mapping | None, ""),
    ("learner.optim.optimizer learner.optim.optimizer_impl", str, ""),
    ("learner.ppo_epochs learner.ppo_mini_batch_size learner.ppo_max_token_len_per_gpu", Positive, ""),
    ("learner.ppo_micro_batch_size_per_gpu", Positive | None, ""),
    ("actor.use_remove_padding actor.use_fused_kernels actor.use_dynamic_bsz", bool, ""),
    ("actor.pad_to_length ref.pad_to_length actor.fsdp_config.pad_to_length critic.fsdp.pad_to_length", bool, ""),
    ("actor.fsdp_config.pad_to_length_bucket critic.fsdp.pad_to_length_bucket", Positive, ""),
    ("actor.fsdp_config.seed actor.fsdp_config.wrap_policy.min_num_params", NonNegative, ""),
    ("critic.fsdp.wrap_policy.min_num_params", NonNegative, ""),
    ("actor.fsdp_config.strategy critic.fsdp.strategy", Literal["fsdp2", "fsdp"], ""),
    ("actor.fsdp_config.ulysses_sequence_parallel_size", Literal[1], "set actor.ulysses_sequence_parallel_size"),
    ("actor.fsdp_config.forward_only critic.fsdp.forward_only", Literal[False], "it is trained"),
    ("ref.use_torch_compile", bool, ""),
    ("learner.loss_agg_mode", Aggregation, ""),
    ("learner.loss_scale_factor", Above | None, ""),
    # the loss
    ("actor.clip_ratio", Above, ""),
    ("actor.clip_ratio_low actor.clip_ratio_high", Above | None, "null for clip_ratio"),
    ("actor.clip_ratio_c", Annotated[float, Gt(1)], "the bound of the ratio where the advantage is negative"),
    ("critic.cliprange_value actor.tau_pos actor.tau_neg", Above, ""),
    ("actor.policy_loss.loss_mode", Loss, ""),
    ("actor.policy_loss.clip_cov_ratio actor.policy_loss.kl_cov_ratio", Part, ""),
    ("actor.policy_loss.clip_cov_lb actor.policy_loss.clip_cov_ub", float, ""),
    ("actor.policy_loss.ppo_kl_coef", Least, ""),
    ("actor.policy_loss.dro_beta", Above | None, ""),
    ("actor.entropy_coeff", float, ""),
    ("actor.kl_loss_coef", Least, ""),
    ("actor.kl_loss_type", Kl, ""),
    ("actor.fsdp_config.model_dtype actor.fsdp_config.dtype", Dtype, ""),
    ("actor.fsdp_config.entropy_from_logits_chunk_size", Positive, ""),
    ("learner.checkpoint.save_contents learner.checkpoint.load_contents", list[Saved], ""),
    ("critic.fsdp.model_dtype critic.fsdp.dtype", Dtype, ""),
    ("actor.fsdp_config.mixed_precision.param_dtype actor.fsdp_config.mixed_precision.reduce_dtype", Dtype | None, ""),
    ("actor.fsdp_config.mixed_precision.buffer_dtype", Dtype | None, ""),
    ("critic.fsdp.mixed_precision.param_dtype critic.fsdp.mixed_precision.reduce_dtype", Dtype | None, ""),
    ("critic.fsdp.mixed_precision.buffer_dtype", Dtype | None, ""),
    ("ref.strategy critic.strategy", Literal["fsdp2", "fsdp"], "policies are trained by verl's FSDP engine"),
    # servers
    ("rollout.temperature", Above, "training needs the probabilities of the sampled tokens"),
    ("rollout.val_kwargs.temperature", Least, ""),
    ("rollout.top_p rollout.val_kwargs.top_p", Part, ""),
    ("rollout.top_k rollout.val_kwargs.top_k", Every, "-1 for all tokens"),
    ("rollout.prompt_length rollout.response_length rollout.max_num_seqs", Positive, ""),
    ("rollout.max_num_batched_tokens rollout.log_prob_max_token_len_per_gpu", Positive, ""),
    ("rollout.max_model_len rollout.log_prob_micro_batch_size_per_gpu", Positive | None, ""),
    ("rollout.checkpoint_engine.update_weights_bucket_megabytes", Positive | None, ""),
    ("rollout.engine_kwargs.vllm.kv_cache_memory_bytes", Positive | None, ""),
    ("rollout.seed", NonNegative, ""),
    ("rollout.load_format", Format, ""),
    ("rollout.name", Literal["vllm"], "a team is served by vLLM"),
    ("rollout.scheduling_policy", Literal["fcfs", "priority"], ""),
    ("rollout.layered_summon", bool, "a policy's adapter is gathered layer by layer"),
    ("rollout.quantization", Literal["fp8", "torchao"] | None, ""),
    ("rollout.cudagraph_capture_sizes", list[Positive] | None, ""),
    ("rollout.logprobs_mode", Literal["processed_logprobs"], "training needs the probabilities of the sampled tokens"),
    ("rollout.engine_kwargs.vllm.distributed_executor_backend", Executor | None, ""),
    ("rollout.dtype", Literal["auto", "half", "float", "bfloat16", "float16", "float32"] | None, ""),
    # models
    ("critic.model.path", str, ""),
    ("model.tokenizer_path model.custom_chat_template", str | None, ""),
    ("model.lora_rank critic.model.lora_rank", Annotated[int, Interval(ge=0, le=512)], "0 for no adapter"),
    ("critic.forward_max_token_len_per_gpu ref.log_prob_max_token_len_per_gpu", Positive, ""),
    ("critic.forward_micro_batch_size_per_gpu ref.log_prob_micro_batch_size_per_gpu", Positive | None, ""),
    ("critic.model.target_modules critic.model.exclude_modules", str | list | None, ""),
    ("critic.model.lora_adapter_path critic.model.external_lib", str | None, ""),
    ("critic.model.lora_alpha model.lora_alpha", Above, "the adapter would have no effect"),
    ("model.target_modules model.exclude_modules", str | list | None, ""),
    ("model.lora_adapter_path model.hf_config_path model.external_lib", str | None, ""),
    ("critic.model.hf_config_path critic.model.tokenizer_path critic.model.custom_chat_template", str | None, ""),
    ("rollout.quantization_config_file", str | None, ""),
    ("critic.model.override_config", Mapping, "leave it out"),
    ("model.use_liger critic.model.use_liger model.lora.merge", bool | None, ""),
    ("actor_rollout_ref.nccl_timeout", Positive, ""),
    ("model.override_config.attn_implementation", Attention | None, ""),
)


def _keys(names: str) -> Iterator[str]:
    for name in names.split():
        first, _, rest = name.partition(".")
        if first == "learner":
            yield from (f"actor_rollout_ref.actor.{rest}", f"critic.{rest}")
        else:
            yield f"actor_rollout_ref.{name}" if first in ("actor", "rollout", "model", "ref") else name


ALLOWED = {key: (hint, why) for names, hint, why in RANGES for key in _keys(names)}
"""Key of a composed config -> (type of its values, why)."""
FROZEN = {"actor_rollout_ref.rollout.temperature": (Least, "")}
"""As `ALLOWED`, for a policy that is not trained: it may act greedily."""
_ABSENT = object()


def check_ranges(config: DictConfig, team: TeamConfig | None = None) -> None:
    """MarlError for a value outside `RANGES`, or an unknown key, in a composed config and in the team's sections."""
    for key, (hint, why) in ALLOWED.items():
        try:
            value = OmegaConf.select(config, key, default=_ABSENT)
        except OmegaConfBaseException as error:
            raise MarlError(f"config cannot be resolved: {' '.join(str(error).split())}") from error
        if value is not _ABSENT:
            _check(value, hint, why, key)
    whole: Any = OmegaConf.to_container(config.actor_rollout_ref.rollout)
    check_engine_arguments(whole, "actor_rollout_ref")
    for name, policy in team.policies.items() if team is not None else ():
        where, allowed = f"marl.policies.{name}", {**ALLOWED, **FROZEN} if policy.frozen else ALLOWED
        check_part(policy.override, config.actor_rollout_ref, where, own_keys())
        _check_part(policy.override, "actor_rollout_ref", where, allowed)
        check_engine_arguments(policy.override.get("rollout"), where)
    critic = OmegaConf.select(config, "marl.critic") or {}
    if isinstance(critic, DictConfig):
        _check_part(OmegaConf.to_container(critic, resolve=True), "critic", "marl.critic", ALLOWED)


def check_part(override: Mapping[str, Any], whole: DictConfig, where: str, own: tuple[str, ...]) -> None:
    """MarlError for a key of section `where` that verl's config lacks; `own` are those that are not verl's."""
    base: Any = OmegaConf.to_container(whole)
    for key in override:
        if key not in base:
            raise unknown_key(f"{where}.{key}", nearest(str(key), [*map(str, base), *own]))
    check_keys(override, base, where, free=VERL_OPEN)


def _check_part(section: Any, verl: str, where: str, allowed: Mapping[str, tuple[Any, str]]) -> None:
    """Check a section that is merged over verl's section `verl`."""
    for path, value in key_paths(section):
        if (found := allowed.get(f"{verl}.{path}")) is not None:
            _check(value, *found, f"{where}.{path}")


def _check(value: Any, hint: Any, why: str, where: str) -> None:
    if isinstance(value, ListConfig):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, str) and not value.strip():
        raise MarlError(f"'{where}' is empty. Give it a value.")
    if isinstance(value, list):  # list[...] | None
        hint = next((part for part in get_args(hint) if get_origin(part) is list), hint)
    if get_origin(hint) not in (list, tuple):
        return check_type(value, hint, where, why)
    check_type(value, list, where, why)
    kinds = get_args(hint) if get_origin(hint) is tuple else get_args(hint) * len(value)
    if len(kinds) != len(value):
        raise MarlError(f"'{where}' must be a list of {len(kinds)} values, got {value!r:.80}")
    for index, (each, kind) in enumerate(zip(value, kinds, strict=True)):
        check_type(each, kind, f"{where}[{index}]", why)
