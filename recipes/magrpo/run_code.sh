#!/usr/bin/env bash
# MAGRPO's code (arXiv 2508.04652): two Qwen2.5-Coder-3B, one GPU of 80 GB each. Problems of HumanEval, or in
# TRAIN_FILE and TEST_FILE. It runs what the models write: see README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/code.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    "$@"
