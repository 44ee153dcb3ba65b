#!/usr/bin/env bash
# MAGRPO's writing, TLDR (arXiv 2508.04652): two Qwen3-1.7B, one GPU each. Posts in TRAIN_FILE and TEST_FILE; how to make
# these files from public ones is in README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/magrpo_writing.yaml" \
  marl.task.train_file="${TRAIN_FILE:-data/tldr/train.jsonl}" \
  marl.task.test_file="${TEST_FILE:-data/tldr/test.jsonl}" \
  "$@"
