#!/usr/bin/env bash
# SHARP (arXiv 2602.08335, second hand) on multi-hop questions: a planner and three search workers, one Qwen3-8B, 8 GPUs.
# TRAIN_FILE, TEST_FILE: rows as in example_multi_hop.jsonl, or MuSiQue's files with marl.task.options.train=musique.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec marl-verl train "$here/sharp_multi_hop.yaml" \
    marl.task.train_file="${TRAIN_FILE:-data/musique/train.jsonl}" \
    marl.task.test_file="${TEST_FILE:-data/musique/test.jsonl}" \
    "$@"
