#!/usr/bin/env bash
# MAGRPO's code (arXiv 2508.04652): two Qwen2.5-Coder-3B, one GPU of 80 GB each. Problems in TRAIN_FILE and TEST_FILE; how to
# make these files from HumanEval's is in README.md. It runs what the models write: see there.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/magrpo_code.yaml" \
  marl.task.train_file="${TRAIN_FILE:-data/humaneval/train.jsonl}" \
  marl.task.test_file="${TEST_FILE:-data/humaneval/test.jsonl}" \
  "$@"
