#!/usr/bin/env bash
# SHARP (arXiv 2602.08335, second hand) on multi-hop questions: a planner and three search workers, one Qwen3-8B, 8 GPUs.
# MuSiQue from the hub; TRAIN_FILE, TEST_FILE: MuSiQue's own files, or rows as in example_multi_hop.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/multi_hop.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    "$@"
