#!/usr/bin/env bash
# Dr. MAS (arXiv 2602.08847): search, verifier, searcher and answerer, up to 4 steps, a Qwen2.5-7B each, 8 GPUs.
# HotpotQA is loaded from the hub; TRAIN_FILE, TEST_FILE: its rows, or rows as in example_search.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/dr_mas_search.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.workflow.options.steps=4 \
    marl.algorithm.options.penalty=0.01 \
    marl.sampler.options.episodes=5 \
    data.train_batch_size=128 \
    data.max_prompt_length=4096 \
    data.max_response_length=800 \
    actor_rollout_ref.actor.ppo_mini_batch_size=25 \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.clip_ratio_low=0.2 \
    actor_rollout_ref.actor.clip_ratio_high=0.2 \
    actor_rollout_ref.rollout.max_model_len=4896 \
    trainer.total_training_steps=300 \
    "$@"
