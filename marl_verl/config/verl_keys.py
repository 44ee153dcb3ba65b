"""Keys of verl's config: those that a team passes on, those that change nothing of what is trained, and the rest.

The longest name that a key begins with decides. A key in no table is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from marl_verl.config.compose import composed_defaults, key_paths
from marl_verl.config.ranges import CRITIC_KEYS
from marl_verl.config.recipe_file import verl_configs
from marl_verl.errors import MarlError, shown
from marl_verl.team import TeamConfig

LEARNER = """strategy ppo_mini_batch_size ppo_micro_batch_size_per_gpu use_dynamic_bsz ppo_max_token_len_per_gpu
    ppo_epochs shuffle data_loader_seed loss_agg_mode loss_scale_factor optim checkpoint.save_contents
    checkpoint.load_contents"""
MODEL = """path hf_config_path tokenizer_path trust_remote_code custom_chat_template external_lib override_config
    enable_gradient_checkpointing enable_activation_offload use_remove_padding lora_rank lora_alpha target_modules
    exclude_modules lora_adapter_path use_liger use_fused_kernels fused_kernel_options"""
LOG_PROB = """strategy log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
    use_torch_compile ulysses_sequence_parallel_size entropy_from_logits_with_chunking entropy_from_logits_chunk_size
    entropy_checkpointing pad_to_length fsdp_config"""
PASSED: Mapping[str, str] = {
    "actor_rollout_ref": "nccl_timeout",
    "actor_rollout_ref.actor": f"""{LEARNER} {LOG_PROB} clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c tau_pos
        tau_neg policy_loss entropy_coeff calculate_entropy use_kl_loss kl_loss_coef kl_loss_type use_fused_kernels
        use_remove_padding""",
    "actor_rollout_ref.ref": LOG_PROB,
    "actor_rollout_ref.model": f"{MODEL} lora.merge target_parameters",
    "actor_rollout_ref.rollout": """name temperature top_k top_p full_determinism seed prompt_length response_length
        dtype gpu_memory_utilization enforce_eager cudagraph_capture_sizes free_cache_engine enable_sleep_mode
        tensor_model_parallel_size data_parallel_size expert_parallel_size max_num_batched_tokens max_model_len
        max_num_seqs enable_chunked_prefill enable_prefix_caching logprobs_mode scheduling_policy load_format
        layered_summon log_prob_micro_batch_size_per_gpu log_prob_use_dynamic_bsz log_prob_max_token_len_per_gpu
        disable_log_stats calculate_log_probs quantization quantization_config_file engine_kwargs.vllm
        val_kwargs.temperature val_kwargs.top_p val_kwargs.top_k val_kwargs.do_sample agent.num_workers
        checkpoint_engine.update_weights_bucket_megabytes""",
    "critic": f"""{LEARNER} cliprange_value fsdp forward_max_token_len_per_gpu
        forward_micro_batch_size_per_gpu""",
    "critic.model": f"{MODEL} target_parameters",
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
    transfer_queue.metrics transfer_queue.backend.storage_backend transfer_queue.backend.MooncakeStore skip
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
    reward_model.launch_reward_fn_async reward.reward_kwargs.overlong_buffer_cfg.log hydra
"""
"""Keys and sections that change nothing of what is trained."""
ENGINE = (
    "Megatron, VeOmni and others: policies are trained by verl's FSDP engine (actor_rollout_ref.actor.strategy=fsdp2)"
)
SERVER = "a team is served by vLLM (actor_rollout_ref.rollout.name=vllm)"
TOOLS = "tools and agent loops: what an agent does is marl.workflow, and tools are functions that it calls (team.call)"
JUDGE = "reward models: a judge is an agent of the team, with a frozen policy or an endpoint (docs/teams.md)"
IMAGES = "images, video and audio: agents see text only"
GPUS = "separate GPUs for training and rollout: a policy's servers are on the GPUs of its training workers"
SCHEDULE = "asynchronous trainers: set marl.schedule.mode=async instead"
REWARD = "reward managers: a function that scores answers is reward.custom_reward_function.path"
TASKS = "datasets of your own: register a task set (docs/plugins.md)"
KL = "KL in the reward: a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true with kl_loss_coef"
ESTIMATOR = "advantage: set marl.algorithm.name and marl.algorithm.options (docs/algorithms.md)"
CHECKPOINT = "checkpoints: set marl.checkpoint.keep and trainer.save_freq; marl-verl train --resume RUN continues a run"
ATTEMPTS = "number of attempts per task: set marl.sampler.options and marl.validation.options"
REFUSED: Mapping[str, str] = {
    ENGINE: """model_engine actor_rollout_ref.actor.model_engine actor_rollout_ref.actor.engine
        actor_rollout_ref.ref.engine critic.engine actor_rollout_ref.actor.optim.lr_decay_style
        actor_rollout_ref.actor.optim.min_lr critic.optim.lr_decay_style critic.optim.min_lr
        actor_rollout_ref.rollout.moe_tensor_parallel_size actor_rollout_ref.actor.megatron
        actor_rollout_ref.ref.megatron critic.megatron
        actor_rollout_ref.actor.veomni actor_rollout_ref.ref.veomni critic.veomni actor_rollout_ref.actor.torchtitan
        actor_rollout_ref.ref.torchtitan critic.torchtitan actor_rollout_ref.actor.mindspeed
        actor_rollout_ref.ref.mindspeed actor_rollout_ref.actor.automodel
        actor_rollout_ref.actor.fsdp_config.turbo_config actor_rollout_ref.ref.fsdp_config.turbo_config
        critic.fsdp.turbo_config actor_rollout_ref.actor.router_replay
        actor_rollout_ref.ref.router_replay actor_rollout_ref.rollout.enable_rollout_routing_replay
        actor_rollout_ref.actor.load_weight critic.load_weight actor_rollout_ref.ref.load_weight
        actor_rollout_ref.model.mtp critic.model.mtp actor_rollout_ref.rollout.mtp""",
    "adapters of Megatron: set model.lora_rank, lora_alpha, target_modules, exclude_modules": (
        "actor_rollout_ref.model.lora critic.model.lora"
    ),
    "training with quantisation: marl-verl has none": """actor_rollout_ref.actor.qat
        actor_rollout_ref.actor.fsdp_config.qat
        actor_rollout_ref.ref.fsdp_config.qat critic.fsdp.qat actor_rollout_ref.rollout.qat""",
    SERVER: """actor_rollout_ref.rollout.engine_kwargs actor_rollout_ref.rollout.disaggregation
        actor_rollout_ref.rollout.agent.custom_async_server actor_rollout_ref.rollout.router_config_path
        actor_rollout_ref.rollout.pipeline_model_parallel_size actor_rollout_ref.rollout.ignore_eos""",
    TOOLS: """data.tool_config_path data.function_tool_path actor_rollout_ref.rollout.multi_turn
        actor_rollout_ref.rollout.agent""",
    JUDGE: "reward_model reward.reward_model",
    IMAGES: """data.image_key data.video_key data.audio_key data.image_patch_size data.mm_processor_kwargs
        actor_rollout_ref.rollout.limit_images""",
    "distillation: marl-verl has none": "distillation",
    GPUS: """actor_rollout_ref.hybrid_engine actor_rollout_ref.rollout.nnodes actor_rollout_ref.rollout.n_gpus_per_node
        actor_rollout_ref.rollout.checkpoint_engine rollout""",
    SCHEDULE: "trainer.v1 async_training actor_rollout_ref.rollout.over_sample_rate",
    REWARD: "reward.reward_manager reward.reward_kwargs",
    TASKS: "data.custom_cls data.sampler data.datagen",
    KL: "algorithm.use_kl_in_reward algorithm.kl_ctrl algorithm.kl_penalty",
    ESTIMATOR: """algorithm.adv_estimator algorithm.gamma algorithm.lam algorithm.norm_adv_by_std_in_grpo
        algorithm.gdpo_reward_keys algorithm.gdpo_reward_weights algorithm.use_pf_ppo algorithm.pf_ppo""",
    "groups without a difference: set marl.sampler.filter={no_variance: true}": "algorithm.filter_groups",
    "prompts that are too long: data.filter_overlong_prompts=true drops such tasks": "data.truncation",
    "the tokenizer: set actor_rollout_ref.model.tokenizer_path": "data.tokenizer",
    CHECKPOINT: """trainer.default_local_dir trainer.max_actor_ckpt_to_keep trainer.resume_from_path
        trainer.checkpoint_callback_class trainer.val_only""",
    ATTEMPTS: "actor_rollout_ref.rollout.n actor_rollout_ref.rollout.val_kwargs.n",
    "sampling: set marl.agents.NAME.sampling": "actor_rollout_ref.rollout.do_sample",
    "critics: algorithm.adv_estimator=gae (or marl.algorithm.name=ippo or mappo) has critics, without a warm-up": (
        "critic.enable trainer.critic_warmup"
    ),
    "micro-batches: set the key that ends in _per_gpu": """actor_rollout_ref.actor.ppo_micro_batch_size
        actor_rollout_ref.rollout.log_prob_micro_batch_size actor_rollout_ref.ref.log_prob_micro_batch_size
        critic.ppo_micro_batch_size critic.forward_micro_batch_size""",
    "gradient clipping: set optim.clip_grad": "actor_rollout_ref.actor.grad_clip critic.grad_clip",
    "sequence parallelism: set critic.fsdp.ulysses_sequence_parallel_size": "critic.ulysses_sequence_parallel_size",
    "sandbox: set reward.sandbox_fusion": "sandbox_fusion",
}
"""What cannot be honoured and what replaces it -> keys and sections."""
PASS, DROP, OTHER = "pass", "drop", "marl-verl does not use this key"
VERDICTS: Mapping[str, str] = {
    **{f"{section}.{key}": PASS for section, keys in PASSED.items() for key in keys.split()},
    **dict.fromkeys(DROPPED.split(), DROP),
    **{key: reason for reason, keys in REFUSED.items() for key in keys.split()},
}


def verdict(key: str) -> str:
    """`PASS`, `DROP`, or why a team cannot honour a key of verl."""
    names = key.split(".")
    prefixes = (".".join(names[:count]) for count in range(len(names), 0, -1))
    return next((VERDICTS[prefix] for prefix in prefixes if prefix in VERDICTS), OTHER)


def check_unused(config: DictConfig, team: TeamConfig) -> None:
    """MarlError for keys of verl in a composed config that differ from a recipe's defaults and that no team uses."""
    device = "cpu" if OmegaConf.select(config, "trainer.device") == "cpu" else "gpu"
    usual = dict(key_paths(composed_defaults((f"hardware={device}",))))
    whole: Any = {name: value for name, value in config.items() if name not in ("marl", "hydra")}
    critic = config.marl.get("critic")
    sections = [("", "", OmegaConf.to_container(OmegaConf.create(whole)))]  # section of verl, of ours, content
    sections += [
        ("actor_rollout_ref", f"marl.policies.{name}", policy.override) for name, policy in team.policies.items()
    ]
    if isinstance(critic, DictConfig):
        sections.append(("critic", "marl.critic", OmegaConf.to_container(critic)))
    unused = []
    for verl, ours, content in sections:
        for key, value in key_paths(content, verl):
            known = {} if value == {} else usual.get(key)
            if isinstance(value, Mapping) or value == known or (why := verdict(key)) == PASS:
                continue
            if ours == "marl.critic" and key.split(".")[1] in CRITIC_KEYS:
                continue
            where = ours + key.removeprefix(verl)
            why = "it changes nothing of what is trained" if why == DROP else why
            unused.append(f"'{where}' has no effect on a team, got {shown(value)}: {why}")
    if unused:
        raise MarlError("; ".join(unused[:3]))


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
