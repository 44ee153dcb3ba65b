#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): mathematics with a final answer, 4 turns, one Qwen3-1.7B per role (2 GPUs). Polaris-53K and
# AIME24 are loaded from the hub; other sets: TRAIN_SET, TEST_SET. TRAIN_FILE, TEST_FILE: their rows, or rows as in
# example_math.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/at_grpo_math.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.task.options.train="${TRAIN_SET:-polaris-53k}" \
    marl.task.options.test="${TEST_SET:-aime24}" \
    marl.sampler.options.candidates=8 \
    data.train_batch_size=32 \
    data.max_prompt_length=2048 \
    data.max_response_length=4096 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.optim.lr=5e-6 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.rollout.temperature=1.0 \
    actor_rollout_ref.rollout.top_p=0.9 \
    actor_rollout_ref.rollout.top_k=20 \
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6 \
    actor_rollout_ref.rollout.val_kwargs.top_p=0.95 \
    actor_rollout_ref.rollout.val_kwargs.top_k=20 \
    trainer.total_training_steps=200 \
    "$@"
