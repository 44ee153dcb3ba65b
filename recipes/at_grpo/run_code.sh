#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): code, 5 turns, one Qwen3-1.7B per role (2 GPUs). CodeContests is loaded from the hub; other
# sets: TRAIN_SET, TEST_SET (apps, livecodebench). TRAIN_FILE, TEST_FILE: rows as in example_code.jsonl instead.
# It runs programs that models wrote in the sandbox, and requires its tier "isolated" (docs/sandbox.md).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
if [ -n "${TRAIN_FILE:-}" ]; then
    set -- marl.task.train_file="$TRAIN_FILE" marl.task.options.train="${TRAIN_SET:-null}" "$@"
fi
if [ -n "${TEST_FILE:-}" ]; then
    set -- marl.task.test_file="$TEST_FILE" marl.task.options.test="${TEST_SET:-null}" "$@"
fi
exec marl-verl train "$here/at_grpo_code.yaml" \
    marl.task.options.train="${TRAIN_SET:-codecontests}" \
    marl.task.options.test="${TEST_SET:-codecontests}" \
    marl.sampler.options.candidates=8 \
    data.train_batch_size=32 \
    data.max_prompt_length=4096 \
    data.max_response_length=2048 \
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
