#!/usr/bin/env bash
# Dr. MAS (arXiv 2602.08847): mathematics, solver and verifier, 2 rounds, a Qwen3-4B each, 4 GPUs.
# The authors' sets are loaded from the hub; TRAIN_FILE, TEST_FILE: rows as in example_math.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/dr_mas_math.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.workflow.options.rounds=2 \
    marl.algorithm.options.penalty=0.1 \
    marl.sampler.options.episodes=8 \
    data.train_batch_size=32 \
    data.max_prompt_length=8192 \
    data.max_response_length=4096 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.rollout.max_model_len=12288 \
    trainer.total_training_steps=300 \
    "$@"
