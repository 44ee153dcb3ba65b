"""Values that verl takes silently, or that ended in a traceback: each is refused with a message that names it.

One composition is shared, and each case applies its overrides to it: a case takes milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from omegaconf import DictConfig
from safetensors.numpy import save_file

from marl_verl.config.compose import compose, with_overrides
from marl_verl.config.ranges import ALLOWED
from marl_verl.errors import MarlError
from marl_verl.run import prepare
from marl_verl.run.settings import check_settings

RECIPE = """
defaults: [marl_trainer, _self_]
marl:
  task: {name: inventory, train_size: 16, test_size: 8}
  workflow: {name: inventory}
  agents: {holder: {policy: one}, asker: {policy: two}}
  policies: {one: {tiny: {steps: 1}}, two: {tiny: {steps: 1}}}
data: {train_batch_size: 8, max_prompt_length: 64, max_response_length: 16}
actor_rollout_ref: {actor: {ppo_mini_batch_size: 8}}
"""
CRITIC = ["marl.algorithm.name=mappo"]
REF = ("actor.", "rollout.", "model.")

RATE, COUNT, SHARE = "a number > 0 and <= 1", "a whole number >= 1", "a number >= 0 and <= 1"
ABOVE, LEAST, OPTIONAL = "a number > 0", "a number >= 0", "a whole number >= 1 or null"
EVERY = "-1 or a whole number >= 1"
OUTSIDE = (  # key, values outside its range, the range; keys of `actor_rollout_ref` are set for a policy, too
    ("actor.optim.lr", "-1 0 2 null", RATE),
    ("actor.optim.weight_decay", "-0.1 1.5 null", SHARE),
    ("actor.optim.lr_warmup_steps", "-2 0.5", "a whole number >= -1 or null"),
    ("actor.optim.lr_warmup_steps_ratio", "-0.1 1.1 null", SHARE),
    ("actor.optim.min_lr_ratio", "-0.1 1.1", f"{SHARE} or null"),
    ("actor.optim.num_cycles", "-1 0 null", ABOVE),
    ("actor.optim.clip_grad", "-1 0 null", ABOVE),
    ("actor.clip_ratio", "-0.2 0 null", ABOVE),
    ("actor.clip_ratio_low", "-0.2 0", f"{ABOVE} or null"),
    ("actor.clip_ratio_high", "-0.2 0", f"{ABOVE} or null"),
    ("actor.clip_ratio_c", "-1 0 1 null", "a number > 1"),
    ("actor.tau_pos", "-1 0 null", ABOVE),
    ("actor.tau_neg", "-1 0 null", ABOVE),
    ("actor.policy_loss.ppo_kl_coef", "-1 null", LEAST),
    ("actor.policy_loss.clip_cov_ratio", "-1 0 2 null", RATE),
    ("actor.policy_loss.dro_beta", "-1 0", f"{ABOVE} or null"),
    ("actor.entropy_coeff", "null", "a number"),
    ("actor.kl_loss_coef", "-0.1 null", LEAST),
    ("actor.ppo_epochs", "-1 0 1.5 null", COUNT),
    ("actor.ppo_mini_batch_size", "-1 0 1.5 null", COUNT),
    ("actor.ppo_max_token_len_per_gpu", "-1 0 1.5 null", COUNT),
    ("actor.ppo_micro_batch_size_per_gpu", "-1 0 1.5 x [1]", OPTIONAL),
    ("actor.ulysses_sequence_parallel_size", "-1 0 0.5 null", COUNT),
    ("actor.loss_scale_factor", "-1 0", f"{ABOVE} or null"),
    ("actor.fsdp_config.fsdp_size", "-2 0 1.5 null", EVERY),
    ("actor.fsdp_config.entropy_from_logits_chunk_size", "-1 0", COUNT),
    ("rollout.temperature", "-1 0 null", ABOVE),
    ("rollout.top_p", "-1 0 1.1 null", RATE),
    ("rollout.top_k", "-2 0 0.5 null", EVERY),
    ("rollout.val_kwargs.temperature", "-1 null", LEAST),
    ("rollout.val_kwargs.top_p", "-1 0 1.1 null", RATE),
    ("rollout.val_kwargs.top_k", "-2 0 0.5 null", EVERY),
    ("rollout.prompt_length", "-1 0 0.5 null x [1]", COUNT),
    ("rollout.response_length", "-1 0 0.5 null x [1]", COUNT),
    ("rollout.max_model_len", "-1 0 0.5 x [1]", OPTIONAL),
    ("rollout.max_num_seqs", "-1 0 0.5 null", COUNT),
    ("rollout.max_num_batched_tokens", "-1 0 0.5 null", COUNT),
    ("rollout.gpu_memory_utilization", "-1 0 1.1 null", RATE),
    ("rollout.tensor_model_parallel_size", "-1 0 0.5 null", COUNT),
    ("rollout.data_parallel_size", "-1 0 0.5 null", COUNT),
    ("rollout.agent.num_workers", "-1 0 0.5 null", COUNT),
    ("rollout.checkpoint_engine.update_weights_bucket_megabytes", "-1 0 0.5 x", OPTIONAL),
    ("rollout.seed", "-1 0.5 null", "a whole number >= 0"),
    ("model.lora_rank", "-1 2.5 513 null", "a whole number >= 0 and <= 512"),
    ("model.lora_alpha", "-1 0 null", ABOVE),
    ("trainer.test_freq", "-2 0 0.5 null", EVERY),
    ("trainer.save_freq", "-2 0 0.5 null", EVERY),
    ("trainer.n_gpus_per_node", "-1 0 0.5 null", COUNT),
    ("trainer.nnodes", "-1 0 0.5 null", COUNT),
    ("trainer.total_epochs", "-1 0 0.5 null", COUNT),
    ("trainer.total_training_steps", "-1 0 0.5 x", OPTIONAL),
    ("data.train_batch_size", "-1 0 0.5 null", COUNT),
    ("data.max_prompt_length", "-1 0 0.5 null", COUNT),
    ("data.max_response_length", "-1 0 0.5 null", COUNT),
    ("data.dataloader_num_workers", "-1 0.5 null", "a whole number >= 0"),
    ("data.val_batch_size", "-1 0 0.5 x", OPTIONAL),
    ("data.seed", "-1 0.5 x", "a whole number >= 0 or null"),
    ("reward.num_workers", "-1 0 0.5 null", COUNT),
    ("marl.task.train_size", "-1 0 1000001", "a whole number >= 1 and <= 1000000"),
    ("marl.run.seed", "-1", "a whole number >= 0"),
    ("marl.checkpoint.keep", "-1 0", COUNT),
    ("marl.rollout.act_seconds", "-1 0", f"{ABOVE} or null"),
    ("marl.rollout.episode_tokens", "-1 0 x", "a whole number"),
    ("marl.rollout.max_failed_share", "-0.1 1.1", SHARE),
    ("ray_kwargs.ray_init.num_cpus", "-1 0 0.5 x", OPTIONAL),
    ("transfer_queue.backend.SimpleStorage.num_data_storage_units", "-1 0 0.5 null", COUNT),
)
CRITICS = (  # as `OUTSIDE`, below `marl.critic`
    ("optim.lr", "-1 0 null", RATE),
    ("optim.weight_decay", "-1", SHARE),
    ("optim.clip_grad", "0 null", ABOVE),
    ("cliprange_value", "-1 0 null", ABOVE),
    ("ppo_epochs", "-1 0 0.5 null", COUNT),
    ("ppo_mini_batch_size", "-1 0 0.5", COUNT),
    ("ppo_max_token_len_per_gpu", "-1 0", COUNT),
    ("optim.lr_warmup_steps", "-2 0.5", ""),
    ("optim.lr_warmup_steps_ratio", "-1 2", SHARE),
    ("optim.min_lr_ratio", "-1 2", ""),
    ("data_loader_seed", "-1 0.5", ""),
    ("ulysses_sequence_parallel_size", "0 -1", COUNT),
    ("fsdp.fsdp_size", "0 -2", ""),
    ("forward_max_token_len_per_gpu", "0 -1", COUNT),
    ("forward_micro_batch_size_per_gpu", "0 -1", ""),
    ("model.lora_alpha", "0 -1", ""),
    ("model.lora_rank", "-1 2.5", "a whole number >= 0 and <= 512"),
)
NAMES = (  # key of a policy, a value, the nearest valid one
    ("actor.policy_loss.loss_mode", "gsop", "did you mean 'gspo'?"),
    ("actor.policy_loss.loss_mode", "nope", "must be one of 'vanilla', 'dppo_tv'"),
    ("actor.loss_agg_mode", "token_mean", "did you mean 'token-mean'?"),
    ("actor.kl_loss_type", "low_var", "did you mean 'low_var_kl"),
    ("actor.optim.lr_scheduler_type", "cosin", "did you mean 'cosine'?"),
    ("actor.fsdp_config.model_dtype", "bf61", "did you mean 'bf16'?"),
    ("actor.fsdp_config.dtype", "int8", "must be one of"),
    ("rollout.dtype", "bfloat", "did you mean 'bfloat16'?"),
    ("rollout.load_format", "safetensor", "did you mean 'safetensors'?"),
    ("rollout.mode", "sync", "has no effect on a team, got "),
    ("model.override_config.attn_implementation", "flash_attn_2", "did you mean 'flash_attention_2'?"),
    ("actor.checkpoint.save_contents", "[modl]", "did you mean 'model'?"),
    ("actor.checkpoint.save_contents", "3", "must be a list, got 3"),
    ("actor.optim.betas", "[0.9]", "must be a list of 2 values, got [0.9]"),
    ("actor.optim.betas", "3", "must be a list, got 3"),
    ("actor.optim.betas", "[0.9,1]", "betas[1]' must be a number >= 0 and < 1, got 1"),
    ("rollout.logprobs_mode", "raw_logits", "training needs the probabilities of the sampled tokens"),
    ("rollout.scheduling_policy", "fsfc", "did you mean 'fcfs'?"),
    ("rollout.engine_kwargs.vllm.distributed_executor_backend", "unii", "did you mean 'uni'?"),
    ("rollout.over_sample_rate", "0.5", "has no effect on a team, got "),
    ("rollout.multi_turn.max_user_turns", "3", "has no effect on a team, got "),
    ("rollout.multi_turn.tool_config_path", "x.yaml", "has no effect on a team, got "),
    ("rollout.agent.agent_loop_config_path", "x", "has no effect on a team, got "),
    ("rollout.cudagraph_capture_sizes", "x", "must be a list or null, got 'x'"),
    ("rollout.quantization", "3", "must be one of 'fp8', 'torchao' or null, got 3"),
    ("actor.ppo_micro_batch_size", "4", "has no effect on a team, got "),
    ("actor.optim.warmup_style", "cosine", "must be null, got 'cosine': set lr_scheduler_type"),
    ("actor.optim.override_optimizer_config", "3", "must be a mapping or null, got 3"),
    ("actor.fsdp_config.mixed_precision", "{param_dtype: int8}", "mixed_precision.param_dtype' must be one of 'fp32'"),
    ("actor.fsdp_config.mixed_precision", "{buffer_dtype: 3}", "mixed_precision.buffer_dtype' must be one of 'fp32'"),
    ("ref.strategy", "megatron", "must be one of 'fsdp2', 'fsdp', got 'megatron': policies are trained by verl's FSDP"),
    ("actor.use_remove_padding", "3", "must be true or false, got 3"),
    ("actor.data_loader_seed", "-3", "must be a whole number >= 0 or null, got -3"),
    ("actor.fsdp_config.seed", "-1", "must be a whole number >= 0, got -1"),
    ("model.exclude_modules", "3", "must be text or a list or null, got 3"),
    ("model.lora_adapter_path", "3", "must be text or null, got 3"),
    (
        "model.tiled_mlp.num_shards",
        "3",
        "'marl.policies.one.model.tiled_mlp.num_shards' has no effect on a team, got 3",
    ),
    (
        "model.tiled_mlp.enabled",
        "true",
        "has no effect on a team, got ",
    ),
    ("actor.checkpoint.strict", "false", "'marl.policies.one.actor.checkpoint.strict' has no effect on a team"),
    ("actor.rollout_n", "4", "has no effect on a team, got "),
    ("actor.fsdp_config.ulysses_sequence_parallel_size", "2", "must be 1, got 2: set actor.ulysses_sequence_parallel"),
    ("actor.fsdp_config.forward_only", "true", "must be False, got True: it is trained"),
    ("rollout.expert_parallel_size", "2", "rollout.expert_parallel_size=2 must be 1, or all GPUs of a server (1)"),
    ("rollout.quantization_config_file", "3", "must be text or null, got 3"),
    # misspelt keys, and values of other kinds
    ("rollout.temprature", "1", "unknown key 'marl.policies.one.rollout.temprature': did you mean 'temperature'?"),
    ("rollout.val_kwargs.temprature", "1", "did you mean 'temperature'?"),
    ("rollout.agent.num_worker", "1", "did you mean 'num_workers'?"),
    ("actor.optim.learning_rate", "1", "unknown key 'marl.policies.one.actor.optim.learning_rate'"),
    ("actr.optim", "1", "did you mean 'actor'?"),
    ("rollout", "3", "'marl.policies.one.rollout' must be a mapping, got 3"),
    ("rollout", "[1]", "'marl.policies.one.rollout' must be a mapping, got [1]"),
    ("rollout", "null", "'marl.policies.one.rollout' must be a mapping, got None: leave it out"),
    ("rollout.val_kwargs", "3", "must be a mapping, got 3"),
    ("actor", "null", "'marl.policies.one.actor' must be a mapping, got None: leave it out"),
    ("actor", "x", "must be a mapping, got 'x'"),
    ("actor.optim", "null", "must be a mapping, got None"),
    ("actor.fsdp_config", "null", "must be a mapping, got None"),
    ("actor.fsdp_config.mixed_precision", "0.001", "must be a mapping or null, got 0.001"),
    ("model", "[1]", "must be a mapping, got [1]"),
    ("model.target_modules", "3", "must be text or a list or null, got 3"),
    ("model.target_modules", "''", "model.target_modules' is empty"),
    ("frozen", "3", "'marl.policies.one.frozen' must be true or false, got 3"),
    ("tiny", "3", "'marl.policies.one.tiny' must be a mapping or null, got 3"),
    ("endpoint", "3", "'marl.policies.one.endpoint' must be a mapping or null, got 3"),
    ("pool", "nowhere", "policy 'one' is on pool 'nowhere', but marl.pools is empty"),
)
LINES = (  # override, message
    (
        "actor_rollout_ref.actor.grad_clip=0.5",
        "has no effect on a team, got ",
    ),
    ("actor_rollout_ref.actor.policy_loss.loss_mode=nope", "must be one of 'vanilla'"),
    ("actor_rollout_ref.rollout.temprature=1", "did you mean 'actor_rollout_ref.rollout.temperature'?"),
    ("actor_rollout_ref.rollout.val_kwargs.topp=1", "did you mean 'actor_rollout_ref.rollout.val_kwargs.top_p'?"),
    ("actor_rollout_ref.rollout.val_kwargs.n=4", "has no effect on a team, got "),
    ("actor_rollout_ref.actor=null", "'actor_rollout_ref.actor' must be a mapping, got None"),
    ("actor_rollout_ref=null", "'actor_rollout_ref' must be a mapping, got None"),
    ("actor_rollout_ref=[1]", "'actor_rollout_ref' must be a mapping, got [1]"),
    ("trainer=null", "'trainer' must be a mapping, got None"),
    ("data=null", "'data' must be a mapping, got None"),
    ("ray_kwargs=null", "'ray_kwargs' must be a mapping, got None"),
    ("ray_kwargs.ray_init=3", "'ray_kwargs.ray_init' must be a mapping, got 3"),
    ("transfer_queue=null", "'transfer_queue' must be a mapping, got None"),
    (
        "transfer_queue.enable=false",
        "'transfer_queue.enable' must be True, got False: the rows of a team are in Transfer",
    ),
    (
        "data.custom_cls.name=Mine",
        "'data.custom_cls.name' must be 'TaskDataset', got 'Mine': a team's tasks are marl.task",
    ),
    ("marl.critic={strategy:megatron}", "'marl.critic.strategy' must be one of 'fsdp2', 'fsdp', got 'megatron'"),
    ("+ray_kwargs.ray_init.num_cpu=9", "unknown key 'ray_kwargs.ray_init.num_cpu': did you mean 'num_cpus'?"),
    ("+ray_kwargs.ray_init._temp_dir=/x", "'ray_kwargs.ray_init._temp_dir' cannot be set: the run's scratch folder is"),
    ("ray_kwargs.ray_init.num_cpus=1", "'ray_kwargs.ray_init.num_cpus' is 1, but the run needs 12 (logical) CPUs"),
    ("+ray_kwargs.ray_init.num_gpus=x", "'ray_kwargs.ray_init.num_gpus' must be a whole number >= 1 or null, got 'x'"),
    ("+ray_kwargs.ray_init.num_gpus=-1", "must be a whole number >= 1 or null, got -1"),
    ("+ray_kwargs.ray_init.address=3", "'ray_kwargs.ray_init.address' must be text or null, got 3"),
    ("trainer.nnodes=3", "the policies need 1 x 3 nodes (one) + 1 x 3 nodes (two) = 6 GPUs, but one machine has 2"),
    ("trainer.device=gpu", "'trainer.device' must be one of 'cpu', 'cuda', 'npu', got 'gpu'"),
    ("trainer.resume_mode=yes", "a run is continued by marl-verl train --resume RUN"),
    ("trainer.val_only=true", "has no effect on a team, got "),
    ("trainer.critic_warmup=3", "has no effect on a team, got "),
    ("trainer.project_name=''", "'trainer.project_name' is empty"),
    ("trainer.project_name=null", "'trainer.project_name' must be text, got None"),
    ("trainer.logger=3", "'trainer.logger' must be a list of trackers"),
    ("trainer.logger=[tensorbord]", "did you mean 'tensorboard'?"),
    ("trainer.val_before_train=3", "'trainer.val_before_train' must be true or false, got 3"),
    ("algorithm.gamma=0.9", "has no effect on a team, got "),
    ("algorithm.use_kl_in_reward=true", "has no effect on a team, got "),
    ("algorithm.rollout_correction=3", "'algorithm.rollout_correction' must be a mapping, got 3"),
    ("data.shuffle=3", "'data.shuffle' must be true or false, got 3"),
    ("data.custom_cls.path=null", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.agent.agent_loop_manager_class=x", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.engine_kwargs=3", "must be a mapping, got 3"),
    ("actor_rollout_ref.rollout.engine_kwargs.vllm=3", "must be a mapping, got 3"),
    # vLLM's own arguments
    ("+actor_rollout_ref.rollout.engine_kwargs.vllm.max_lorsa=2", "did you mean 'max_loras'?"),
    ("+actor_rollout_ref.rollout.engine_kwargs.vllm.zzz=2", "vllm.zzz': vLLM's documentation lists its engine argum"),
    (
        "+marl.policies.one.rollout.engine_kwargs.vllm.kv_cache_memory_byte=2",
        "unknown key 'marl.policies.one.rollout.engine_kwargs.vllm.kv_cache_memory_byte': did you mean 'kv_cache_mem",
    ),
    (
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.max_model_len=99",
        "is set by the run: set actor_rollout_ref.rollout.max_model_len instead",
    ),
    ("+marl.policies.one.rollout.engine_kwargs.vllm.seed=9", "set marl.policies.one.rollout.seed instead"),
    ("actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=x", "must be a whole number >= 1 or null"),
    ("+actor_rollout_ref.rollout.engine_kwargs.sglang={x:1}", "has no effect: a team is served by vLLM"),
    # sections and keys of verl that a team does not use
    ("reward.reward_manager.name=dapo", "has no effect on a team, got "),
    ("reward.reward_manager.module.path=x.py", "has no effect on a team, got "),
    ("reward.reward_model.enable=true", "a judge is an agent of the team, with a frozen policy or an endpoint"),
    ("reward.reward_model.model_path=x", "'reward.reward_model.model_path' has no effect on a team, got 'x'"),
    ("reward.reward_model.rollout.dtype=float16", "'reward.reward_model.rollout.dtype' has no effect on a team"),
    ("reward_model.enable=true", "has no effect on a team, got "),
    ("reward_model.reward_manager=dapo", "has no effect on a team, got "),
    ("sandbox_fusion.url=http://x", "set reward.sandbox_fusion"),
    ("data.truncation=left", "has no effect on a team, got "),
    ("data.image_key=picture", "agents see text only"),
    ("data.tool_config_path=tools.yaml", "has no effect on a team, got "),
    ("data.gen_batch_size=16", "has no effect on a team, got "),
    ("algorithm.filter_groups.enable=true", "set marl.sampler.filter={no_variance: true}"),
    ("algorithm.kl_ctrl.kl_coef=0.1", "a team's KL penalty is actor_rollout_ref.actor.use_kl_loss=true"),
    ("trainer.rollout_data_dir=x", "has no effect on a team, got "),
    ("trainer.default_local_dir=x", "has no effect on a team, got "),
    ("trainer.max_actor_ckpt_to_keep=3", "has no effect on a team, got "),
    ("trainer.resume_from_path=x", "has no effect on a team, got "),
    ("distillation.enabled=true", "has no effect on a team, got "),
    ("marl.critic={optim:{betas:[0.9]}}", "'marl.critic.optim.betas' must be a list of 2 values"),
    ("marl.critic={optim:{betas:[0.9,1]}}", "'marl.critic.optim.betas[1]' must be"),
    (
        "marl.critic={optim:{lr_scheduler_type:linear}}",
        "'marl.critic.optim.lr_scheduler_type' must be one of 'constant'",
    ),
    ("marl.critic={loss_agg_mode:mean}", "'marl.critic.loss_agg_mode' must be one of 'token-mean'"),
    (
        "marl.critic={checkpoint:{save_contents:[x]}}",
        "'marl.critic.checkpoint.save_contents[0]' must be one of 'model'",
    ),
    ("marl.critic={fsdp:{model_dtype:int8}}", "'marl.critic.fsdp.model_dtype' must be one of 'fp32'"),
    ("marl.critic={ppo_micro_batch_size:4}", "set the key that ends in _per_gpu"),
    ("distillation.nnodes=1", "has no effect on a team, got "),
    ("trainer.balance_batch=false", "has no effect on a team, got "),
    ("trainer.v1.sampler.max_off_policy_strategy=3", "has no effect on a team, got "),
    ("trainer.v1.sampler.custom_sampler.path=x.py", "set marl.schedule"),
    ("trainer.v1.separate_async.parameter_sync_step=2", "set marl.schedule"),
    (
        "actor_rollout_ref.rollout.trace.backend=weave",
        "'actor_rollout_ref.rollout.trace.backend' has no effect on a team",
    ),
    ("actor_rollout_ref.rollout.trace.token2text=true", "has no effect on a team, got "),
    ("global_profiler.tool=nsys", "has no effect on a team, got "),
    ("global_profiler.steps=[1]", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.profiler.enable=true", "has no effect on a team, got "),
    ("critic.profiler.enable=true", "has no effect on a team, got "),
    (
        "+marl.policies.one.actor.profiler.enable=true",
        "'marl.policies.one.actor.profiler.enable' has no effect on a team",
    ),
    ("+marl.policies.one.model.mtp.enable=true", "'marl.policies.one.model.mtp.enable' has no effect on a team"),
    ("marl.critic={profiler:{enable:true}}", "'marl.critic.profiler.enable' has no effect on a team, got True"),
    ("marl.critic={model:{mtp:{enable:true}}}", "'marl.critic.model.mtp.enable' has no effect on a team, got True"),
    ("ray_kwargs.timeline_json_file=x.json", "has no effect on a team, got "),
    ("actor_rollout_ref.model.mtp.method=eagle", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.qat.enable=true", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.fsdp_config.qat.mode=w8", "has no effect on a team, got "),
    (
        "actor_rollout_ref.actor.fsdp_config.turbo_config.distributed.ulysses_parallel_size=2",
        "has no effect on a team, got ",
    ),
    ("actor_rollout_ref.actor.checkpoint.async_save=true", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.freeze_vision_tower=true", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.optim.total_training_steps=9", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.prometheus.enable=true", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.multi_turn.format=x", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.agent.default_agent_loop=x", "what an agent does is marl.workflow"),
    ("actor_rollout_ref.hybrid_engine=false", "a policy's servers are on the GPUs of its training workers"),
    ("actor_rollout_ref.rollout.nnodes=1", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.n_gpus_per_node=3", "has no effect on a team, got "),
    ("+marl.extra=3", "unknown key 'marl.extra'"),
    ("+marl.rollout.act_second=3", "unknown key 'marl.rollout.act_second': did you mean 'marl.rollout.act_seconds'?"),
    ("critic.enable=true", "has no effect on a team, got "),
    ("actor_rollout_ref.actor.calculate_sum_pi_squared=true", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=x", "servers are on the GPUs of its training"),
    ("actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs={x:1}", "servers are on the GPUs of its training"),
    ("actor_rollout_ref.rollout.agent.custom_async_server.path=x.py", "a team is served by vLLM"),
    ("actor_rollout_ref.rollout.ignore_eos=true", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.enable_rollout_routing_replay=true", "has no effect on a team, got "),
    ("data.shuffle=null", "'data.shuffle' must be true or false, got None"),
    ("data.dataloader_num_workers=100000", "must be a whole number >= 0 and <= 256, got 100000"),
    ("reward.num_workers=100000", "must be a whole number >= 1 and <= 1024, got 100000"),
    ("actor_rollout_ref.actor.fsdp_config.wrap_policy={min_num_params:-3}", "must be a whole number >= 0, got -3"),
    ("actor_rollout_ref.actor.fsdp_config.strategy=nope", "must be one of 'fsdp2', 'fsdp', got 'nope'"),
    ("actor_rollout_ref.ref.use_torch_compile=3", "must be true or false, got 3"),
    ("actor_rollout_ref.rollout.quantization=nope", "must be one of 'fp8', 'torchao' or null, got 'nope'"),
    ("actor_rollout_ref.rollout.cudagraph_capture_sizes=[-1]", "cudagraph_capture_sizes[0]' must be a whole number"),
    ("actor_rollout_ref.rollout.cudagraph_capture_sizes=[1,x]", "cudagraph_capture_sizes[1]' must be a whole number"),
    ("+ray_kwargs.ray_init.object_store_memory=3", "got 3: bytes; Ray needs 75 MiB"),
    ("+ray_kwargs.ray_init.runtime_env=3", "'ray_kwargs.ray_init.runtime_env' must be a mapping or null, got 3"),
    ("transfer_queue.backend.SimpleStorage.total_storage_size=0", "must be a whole number >= 1 or null, got 0"),
    ("+marl.policies.one.rollout.nnodes=1", "'marl.policies.one.rollout.nnodes' has no effect on a team, got 1"),
    ("actor_rollout_ref.rollout.skip_tokenizer_init=false", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.moe_load_balance_metrics_interval=5", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.multi_stage_wake_up=true", "has no effect on a team, got "),
    ("actor_rollout_ref.rollout.layered_summon=3", "must be true or false, got 3"),
    ("actor_rollout_ref.rollout.router_config_path=x.yaml", "has no effect on a team, got "),
    ("data.filter_overlong_prompts_workers=4", "has no effect on a team, got "),
    ("data.validation_shuffle=true", "has no effect on a team, got "),
    ("actor_rollout_ref.model.lora.alpha=64", "'actor_rollout_ref.model.lora.alpha' has no effect on a team, got 64"),
    ("actor_rollout_ref.model.lora.target_modules=[x]", "set model.lora_rank, lora_alpha, target_modules"),
    ("+marl.policies.one.model.lora.dropout=0.5", "'marl.policies.one.model.lora.dropout' has no effect on a team"),
    ("marl.critic={model:{lora:{merge:true}}}", "'marl.critic.model.lora.merge' has no effect on a team, got True"),
    ("actor_rollout_ref.model.lora.merge=3", "must be true or false or null, got 3"),
    ("actor_rollout_ref.model.use_shm=true", "has no effect on a team, got "),
    ("marl.critic={model:{use_shm:true}}", "has no effect on a team, got "),
    ("actor_rollout_ref.model.use_liger=3", "must be true or false, got 3"),
    ("actor_rollout_ref.actor.pad_to_length=3", "'actor_rollout_ref.actor.pad_to_length' must be true or false, got 3"),
    ("actor_rollout_ref.actor.fsdp_config.pad_to_length_bucket=0", "must be a whole number >= 1, got 0"),
    ("actor_rollout_ref.actor.policy_loss.clip_cov_lb=x", "must be a number, got 'x'"),
    ("transfer_queue.backend.storage_backend=MooncakeStore", "has no effect on a team, got "),
    ("transfer_queue.metrics.enabled=true", "has no effect on a team, got "),
    ("skip.rollout.enable=true", "has no effect on a team, got "),
    ("trainer.v1.trainer_mode=sync", "must be 'team', got 'sync': set marl.schedule.mode to sync or async"),
    ("data.train_max_samples=-3", "must be -1 or a whole number >= 1, got -3: -1 for all"),
    ("reward.sandbox_fusion.max_concurrent=-3", "must be a whole number >= 1, got -3"),
    ("reward.sandbox_fusion.url=[1]", "'reward.sandbox_fusion.url' must be text or null, got [1]"),
    ("reward.custom_reward_function.name=3", "'reward.custom_reward_function.name' must be text, got 3"),
    ("algorithm.rollout_correction.rollout_is_threshold=-3", "must be a number > 0 or text or null, got -3"),
    ("actor_rollout_ref.nccl_timeout=-3", "must be a whole number >= 1, got -3"),
    ("marl.critic={optim:{warmup_style:cosine}}", "must be null, got 'cosine': set lr_scheduler_type"),
    ("marl.critic={ulysses_sequence_parallel_size:2}", "set critic.fsdp.ulysses_sequence_parallel_size"),
    ("marl.critic={fsdp:{forward_only:true}}", "'marl.critic.fsdp.forward_only' must be False, got True"),
    ("marl.critic={model:{tiled_mlp:{enabled:true}}}", "'marl.critic.model.tiled_mlp.enabled' has no effect"),
    ("marl.critic={model:{tokenizer_path:3}}", "'marl.critic.model.tokenizer_path' must be text or null, got 3"),
    ("marl.critic={model:{override_config:3}}", "'marl.critic.model.override_config' must be a mapping, got 3"),
    ("critic.rollout_n=4", "has no effect on a team, got "),
    ("marl.task={name:verl,options:{sandbox_url:nope}}", "'reward.sandbox_fusion.url' must be a URL, got 'nope': e.g."),
    # keys that `+` would add, without effect
    ("+trainer.nope=1", "unknown key 'trainer.nope'"),
    ("+trainer.total_epoch=1", "did you mean 'trainer.total_epochs'?"),
    ("++trainer.nope=1", "unknown key 'trainer.nope'"),
    ("+trainer={nope:1}", "unknown key 'trainer.nope'"),
    ("+data.nope=1", "unknown key 'data.nope'"),
    ("+nope=1", "unknown key 'nope'"),
    ("+nope.more=1", "unknown key 'nope.more'"),
    ("+algorithm.nope=1", "unknown key 'algorithm.nope'"),
    ("+reward.nope=1", "unknown key 'reward.nope'"),
    ("+transfer_queue.nope=1", "unknown key 'transfer_queue.nope'"),
    ("+transfer_queue.backend.nope=1", "unknown key 'transfer_queue.backend.nope'"),
    ("+transfer_queue.backend.SimpleStorage.nope=1", "unknown key 'transfer_queue.backend.SimpleStorage.nope'"),
    ("+ray_kwargs.nope=1", "unknown key 'ray_kwargs.nope'"),
    ("+actor_rollout_ref.nope=1", "unknown key 'actor_rollout_ref.nope'"),
    ("+actor_rollout_ref.actor.nope=1", "unknown key 'actor_rollout_ref.actor.nope'"),
    ("+actor_rollout_ref.actor.optim.nope=1", "unknown key 'actor_rollout_ref.actor.optim.nope'"),
    ("+actor_rollout_ref.actor.use_rollout_log_probs=true", "unknown key 'actor_rollout_ref.actor.use_rollout_log_pr"),
    ("+actor_rollout_ref.actor.checkpoint.save_lora_only=true", "unknown key 'actor_rollout_ref.actor.checkpoint.sa"),
    ("+actor_rollout_ref.rollout.repetition_penalty=2", "unknown key 'actor_rollout_ref.rollout.repetition_penalty'"),
    ("+actor_rollout_ref.rollout.limit_images=2", "unknown key 'actor_rollout_ref.rollout.limit_images'"),
    ("+actor_rollout_ref.model.hf_config=x", "unknown key 'actor_rollout_ref.model.hf_config'"),
    ("+ray_kwargs.ray_init.runtime_env={env_var:{}}", "unknown key 'ray_kwargs.ray_init.runtime_env.env_var'"),
    ("marl=null", "'marl' must be a mapping, got None"),
    ("marl.run=[1]", "'marl.run' must be a mapping, got [1]"),
    ("marl.run.dir=''", "'marl.run.dir' is empty"),
    ("marl.run.dir=3", "'marl.run.dir' must be text, got 3"),
    ("marl.run.seed=99999999999999999999", "must be a whole number, got 99999999999999999999"),
    ("marl.run.repeatable=maybe", "must be true or false, got 'maybe'"),
    ("marl.task.options=[1]", "'marl.task.options' must be a mapping, got [1]"),
    ("marl.task.options={lenght:3}", "did you mean 'length'?"),
    ("marl.task.name=[inventory]", "'marl.task.name' must be text, got ['inventory']"),
    ("marl.task.name=inventri", "unknown task 'inventri': did you mean 'inventory'?"),
    ("marl.workflow.options={rounds:1}", "unknown key 'marl.workflow.options.rounds'"),
    ("marl.algorithm.name=null", "'marl.algorithm.name' must be text, got None"),
    ("marl.algorithm.options=[1]", "'marl.algorithm.options' must be a mapping, got [1]"),
    ("marl.agents=[1]", "'marl.agents' must be a mapping, got [1]"),
    ("marl.agents={a:null}", "agent 'a' has no policy"),
    ("marl.agents={a:{policy:3}}", "'marl.agents.a.policy' must be text, got 3"),
    ("marl.agents={ä:{policy:one}}", "is not of the form key=value"),
    ("marl.agents={a_b:{policy:one}}", "a name must consist of letters, digits and '-'"),
    ("marl.agents.holder.instructions=3", "'marl.agents.holder.instructions' must be text, got 3"),
    ("marl.agents.holder.sampling=3", "'marl.agents.holder.sampling' must be a mapping, got 3"),
    ("marl.agents.holder.sampling={temperature:-1}", "must be a number >= 0 or null, got -1"),
    ("marl.agents.holder.sampling={top_p:0}", "must be a number > 0 and <= 1 or null, got 0"),
    ("marl.agents.holder.sampling={top_k:0}", "must be -1 or a whole number >= 1 or null, got 0"),
    ("marl.agents.holder.sampling={max_tokens:0}", "must be a whole number >= 1 or null, got 0"),
    ("marl.agents.holder.sampling={max_tokens:17}", "must be <= data.max_response_length=16, got 17"),
    ("marl.agents.holder.sampling={temperature:0}", "but policy 'one' is trained at 1"),
    ("marl.policies=[1]", "'marl.policies' must be a mapping, got [1]"),
    ("marl.policies.one=3", "'marl.policies.one' must be a mapping, got 3"),
    ("marl.pools=[p]", "'marl.pools' must be a mapping, got ['p']"),
    ("marl.pools={p:3}", "'marl.pools.p' must be a mapping of options, got 3"),
    ("marl.pools={p:{gpus:0}}", "'marl.pools.p.gpus' must be a whole number >= 1, got 0"),
    ("marl.pools={p:{gpus:1.5}}", "'marl.pools.p.gpus' must be a whole number >= 1, got 1.5"),
    ("marl.pools={p:{nodes:-1}}", "'marl.pools.p.nodes' must be a whole number >= 1, got -1"),
    ("marl.critic=3", "'marl.critic' must be a mapping"),
    ("marl.critic=${marl.run.seed}", "'marl.critic' must be a mapping"),
    ("marl.schedule=3", "'marl.schedule' must be a mapping, got 3"),
    ("marl.validation.sampler=3", "unknown sampler '3'"),
    ("marl.sampler.options=3", "'marl.sampler.options' must be a mapping, got 3"),
    ("marl.sampler.options={episodes:1000000}", "must be a whole number >= 1 and <= 4096, got 1000000"),
    ("marl.run.seed=${nowhere}", "the marl section cannot be resolved"),
    ("trainer.test_freq=${nowhere}", "config cannot be resolved"),
    ("actor_rollout_ref.actor.optim.lr=${marl.run.seed}", "must be a number > 0 and <= 1, got 0"),
)
WHOLE = (  # overrides, separated by spaces, and the message of a check that needs models, tasks or resolved settings
    ("actor_rollout_ref.rollout.max_model_len=79", "is 79, but a turn may have prompt 64 + response 16 = 80 tokens"),
    ("marl.policies.one.rollout.max_model_len=79", "'marl.policies.one.rollout.max_model_len' is 79"),
    ("marl.policies.one.rollout.max_model_len=257", "is 257, but its model has a context of 256 tokens: lower it, or"),
    (
        "marl.policies.one.frozen=true marl.policies.one.rollout.max_model_len=79",
        "'marl.policies.one.rollout.max_model",
    ),
    ("actor_rollout_ref.rollout.max_num_batched_tokens=255", "is 255, but must be at least max_num_seqs=256"),
    ("actor_rollout_ref.rollout.enable_chunked_prefill=true", "a server ends when it divides the prompt of a request"),
    (f"marl.agents.holder.instructions='{'word ' * 65}'", "the instructions of agent 'holder' have 65 words, but a"),
    ("actor_rollout_ref.actor.optim.optimizer=AdmaW", "did you mean 'AdamW'?"),
    (
        "+marl.policies.one.actor.optim.override_optimizer_config={fussed:true}",
        "unknown key 'marl.policies.one.actor.optim.override_optimizer_config.fussed' of AdamW: did you mean 'fused'?",
    ),
    (
        "marl.algorithm.name=mappo marl.critic={optim:{override_optimizer_config:{nope:3}}}",
        "unknown key 'marl.critic.optim.override_optimizer_config.nope' of AdamW",
    ),
    ("marl.policies.one.actor.fsdp_config.mixed_precision={parm_dtype:bf16}", "did you mean 'param_dtype'?"),
    ("marl.policies.two.rollout.quantization_config_file=/no.json", "is '/no.json', which is no file"),
    ("actor_rollout_ref.actor.optim.optimizer=Rprop", "unknown value 'Rprop' of 'marl.policies.one.actor.optim.optimi"),
    (
        "marl.policies.one.actor.optim.override_optimizer_config={lr:1}",
        "would replace 'marl.policies.one.actor.optim.lr': set that instead",
    ),
    (
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision={dtype:fp32}",
        "unknown key 'marl.policies.one.ref.fsdp_config.mixed_precision.dtype'",
    ),
    (
        "marl.policies.one.model.override_config={rope_theta:1000.0}",
        "changes the log-probs of the trained model only, not those of its servers",
    ),
    ("actor_rollout_ref.actor.optim.optimizer_impl=nowhere.optim", "is 'nowhere.optim', which is not installed"),
    ("marl.policies.one.actor.checkpoint.save_contents=[]", "lacks 'model', which resuming and export need"),
    (
        "actor_rollout_ref.model.tokenizer_path=xyz",
        "policy 'one' has a tiny model with files of its own, but model.token",
    ),
    (
        "+marl.policies.two.model.hf_config_path=xyz",
        "policy 'two' has a tiny model with files of its own, but model.hf_",
    ),
    ("marl.policies.one.tiny={heads:3}", "marl.policies.one.tiny: heads=3 must be a multiple of kv_heads=2"),
    ("marl.policies.one.tiny={hidden:3}", "marl.policies.one.tiny: hidden=3 must be a multiple of 8, e.g. 8"),
    ("marl.policies.one.tiny={hidden:100}", "hidden=100 must be a multiple of 8, e.g. 96"),
    ("marl.policies.one.tiny={mlp:9}", "mlp=9 must be a multiple of 8, e.g. 8"),
    ("marl.policies.one.tiny={head_dim:33}", "head_dim=33 must be a multiple of 8, e.g. 32"),
    ("marl.policies.one.tiny={head_dim:16}", "head_dim=16 is no size of vLLM's attention: set one of 32, 64, 80"),
    ("marl.policies.one.tiny={kv_heads:0}", "'marl.policies.one.tiny.kv_heads' must be a whole number >= 1"),
    ("marl.policies.one.tiny={family:gpt}", "'marl.policies.one.tiny.family' must be one of 'qwen3', 'llama'"),
    ("marl.algorithm.name=mappo marl.critic.tiny={hidden:3}", "marl.critic.tiny: hidden=3 must be a multiple of 8"),
    ("marl.policies.one.tiny={layers:0}", "'marl.policies.one.tiny.layers' must be a whole number >= 1"),
    ("marl.policies.one.tiny={layers:1000000000}", "must be a whole number >= 1 and <= 16384"),
    ("marl.policies.one.tiny={context:1}", "must be a whole number >= 16"),
    ("marl.policies.one.tiny={learning_rate:-1}", "'marl.policies.one.tiny.learning_rate' must be a number > 0"),
    ("marl.policies.one.tiny={steps:-1}", "'marl.policies.one.tiny.steps' must be a whole number >= 0"),
    ("marl.policies.one.tiny={agents:[nobody]}", "unknown agent of inventory 'nobody'"),
    ("marl.algorithm.name=mappo marl.critic.tiny={heads:3}", "marl.critic.tiny: heads=3 must be a multiple of"),
    ("marl.policies.one.loss=nope", "unknown loss 'nope'"),
    (
        "+marl.policies.one.actor.policy_loss={loss_mode:clip_cov,clip_cov_lb:5,clip_cov_ub:5}",
        "policy 'one': policy_loss.clip_cov_lb=5 must be below clip_cov_ub=5, else no token is clipped",
    ),
    (
        "+marl.policies.one.model.override_config={num_hidden_layers:1}",
        "'marl.policies.one.model.override_config.num_hidden_layers' changes the shape of the trained model only",
    ),
    ("+marl.policies.one.model.external_lib=nowhere.lib", "is 'nowhere.lib', which is not installed"),
    ("+marl.policies.one.model.use_liger=true", "'marl.policies.one.model.use_liger' needs a GPU"),
    ("+marl.policies.one.model.lora={rank:8}", "'marl.policies.one.model.lora.rank' has no effect on a team"),
    ("marl.task.train_file=/dev/zero", "marl.task.train_file: no task file '/dev/zero'. Check the path."),
    ("marl.task.train_file=/tmp", "marl.task.train_file: no task file '/tmp'. Check the path."),
    ("marl.task.train_size=1000000", "inventory: found only 35798 of 1000000 different train tasks"),
    ("trainer.n_gpus_per_node=100000", "this machine: about "),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> DictConfig:
    path = tmp_path_factory.mktemp("recipe") / "team.yaml"
    path.write_text(RECIPE)
    return compose(path, [], hardware="cpu")


@pytest.fixture
def refused(base: DictConfig) -> Callable[..., str]:
    """The message for the shared config with overrides."""

    def message(*lines: str, check: Callable[[DictConfig], object] = check_settings) -> str:
        with pytest.raises(MarlError) as error:
            check(with_overrides(base, lines))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 1000
        return str(error.value)

    return message


def test_the_recipe_itself_is_right(base: DictConfig, tmp_path: Path) -> None:
    assert prepare._check(base, tmp_path / "run").tiny.keys() == {"one", "two"}


@pytest.mark.parametrize(("key", "values", "words"), OUTSIDE)
def test_a_value_outside_its_range(refused: Callable[..., str], key: str, values: str, words: str) -> None:
    first, *others = values.split()
    where = f"marl.policies.one.{key}" if key.startswith(REF) else key
    cases = [(where, value) for value in (first, *others)]
    if where != key:
        cases.append((f"actor_rollout_ref.{key}", first))
    for where, value in cases:
        # whether text or a list is a number is checked first, without the range
        kinds = "|".join(map(re.escape, (words, "a number, got")))
        found = refused(f"{where}={value}")
        assert re.match(rf"'{re.escape(where)}' must be (one of )?({kinds})", found), f"{where}={value}: {found}"


@pytest.mark.parametrize(("key", "values", "words"), CRITICS)
def test_a_value_of_a_critic_outside_its_range(refused: Callable[..., str], key: str, values: str, words: str) -> None:
    for value in values.split():
        found = refused(*CRITIC, f"marl.critic.{key}={value}")
        assert found.startswith(f"'marl.critic.{key}' must be {words}"), f"{key}={value}: {found}"


NUMBERS = [key for key, *_ in OUTSIDE if not key.startswith(("ray_kwargs", "transfer_queue"))]


@pytest.mark.parametrize("value", ["nan", "inf", "[1]"])
def test_no_number(refused: Callable[..., str], value: str) -> None:
    for key in NUMBERS:
        where = f"marl.policies.one.{key}" if key.startswith(REF) else key
        assert refused(f"{where}={value}").startswith(f"'{where}' must be a"), f"{where}={value}"


@pytest.mark.parametrize(("key", "value", "message"), NAMES)
def test_a_name_or_key_that_is_not_valid(refused: Callable[..., str], key: str, value: str, message: str) -> None:
    assert message in refused(f"marl.policies.one.{key}={value}")


@pytest.mark.parametrize(("line", "message"), LINES)
def test_other_values(refused: Callable[..., str], line: str, message: str) -> None:
    assert message in refused(line)


@pytest.mark.parametrize(("lines", "message"), WHOLE)
def test_values_that_do_not_go_together(refused: Callable[..., str], tmp_path: Path, lines: str, message: str) -> None:
    split = [lines] if "'" in lines else lines.split()
    assert message in refused(*split, check=lambda config: prepare._check(config, tmp_path / "run"))


def test_a_file_system_without_storage(refused: Callable[..., str]) -> None:
    found = refused(check=lambda config: prepare._check(config, Path("/proc/x/y")))
    assert found == "run directory '/proc/x/y' cannot be created: '/proc' is on a file system without storage"


def test_the_table_names_keys_of_verl(base: DictConfig) -> None:
    """A key that verl renames would no longer be checked."""
    from omegaconf import OmegaConf

    absent = [key for key in ALLOWED if OmegaConf.select(base, key, default="absent") == "absent"]
    within = [key for key in absent if ".mixed_precision." in key]  # null by default
    assert len(within) == 6
    other = [key for key in absent if key not in within]
    assert other == [f"ray_kwargs.ray_init.{name}" for name in ("num_gpus", "object_store_memory", "address")]


def test_every_key_of_verl_is_passed_on_dropped_or_refused_with_a_reason() -> None:
    """A key that is new in verl has to be put into a table."""
    from marl_verl.config.translation import defaults
    from marl_verl.config.verl_keys import OTHER, verdict

    leaves = [key for key, value in defaults().items() if not isinstance(value, dict) and "_target_" not in key]
    assert [key for key in leaves if verdict(key) == OTHER] == []
    assert verdict("trainer.new_key") == OTHER


def test_the_engine_arguments_are_read_from_vllm() -> None:
    """If vLLM moves its argument classes, unknown names would no longer be refused."""
    from marl_verl.config.engine_arguments import REPLACED, engine_arguments

    assert {*REPLACED, "kv_cache_memory_bytes", "max_loras", "enable_log_requests"} <= engine_arguments()


def test_the_arguments_of_ray_are_those_of_ray() -> None:
    """A name that Ray drops would be accepted, and fail after start-up."""
    import inspect

    import ray
    from ray.runtime_env import RuntimeEnv

    from marl_verl.config.ray_init import ARGUMENTS, REPLACED, RUNTIME

    private = re.findall(r'kwargs.pop\(\s*"(\w+)"', inspect.getsource(ray.init))
    assert {*ARGUMENTS, *REPLACED} <= {*inspect.signature(ray.init).parameters, *private}
    assert {*RUNTIME} <= {*inspect.signature(RuntimeEnv).parameters, *RuntimeEnv.known_fields}


def test_keys_of_a_models_config(tmp_path: Path) -> None:
    from marl_verl.config.library_options import _check_model

    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "mine": 1}')
    _check_model(str(tmp_path), ["attention_dropout", "mine", "use_cache"], "marl.policies.one.model.override_config")
    with pytest.raises(MarlError, match="of models of type 'qwen3': did you mean 'attention_dropout'"):
        _check_model(str(tmp_path), ["atention_dropout"], "marl.policies.one.model.override_config")


def test_a_key_of_verls_data_with_another_task_set(base: DictConfig) -> None:
    from marl_verl.config.verl_data import use_verl_data

    for line in ("data.prompt_key=question", "data.train_max_samples=9", "reward.sandbox_fusion.url=http://x"):
        key, _, value = line.partition("=")
        with pytest.raises(MarlError, match=f"'{re.escape(key)}' has no effect on task set 'inventory', got '?{value}"):
            use_verl_data(with_overrides(base, [line]))
    use_verl_data(base)


def test_target_modules_that_the_model_lacks(tmp_path: Path) -> None:
    from omegaconf import OmegaConf

    from marl_verl.config.engine import check_model

    save_file(
        {f"layers.0.{name}.weight": np.zeros((2, 2)) for name in ("q_proj", "v_proj")}, tmp_path / "m.safetensors"
    )
    model = {"path": str(tmp_path), "lora_rank": 8, "override_config": {}, "external_lib": None}
    for modules, message in ((["q_porj"], "did you mean 'q_proj'"), ([], "name one of q_proj, v_proj")):
        with pytest.raises(MarlError, match=message):
            check_model(OmegaConf.create({**model, "target_modules": modules}), "marl.policies.one")
    for right in (["q_proj"], "all-linear", None):
        check_model(OmegaConf.create({**model, "target_modules": right}), "marl.policies.one")


def test_a_frozen_policy_may_act_greedily(base: DictConfig) -> None:
    check_settings(with_overrides(base, ["marl.policies.one.frozen=true", "marl.policies.one.rollout.temperature=0"]))
