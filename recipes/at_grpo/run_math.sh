#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): mathematics with a final answer, 4 turns, one Qwen3-1.7B per role (2 GPUs). Polaris-53K and
# AIME24 are loaded from the hub; other sets: TRAIN_SET, TEST_SET. TRAIN_FILE, TEST_FILE: their rows, or rows as in
# example_math.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/math.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.task.options.train="${TRAIN_SET:-polaris-53k}" \
    marl.task.options.test="${TEST_SET:-aime24}" \
    "$@"
