#!/usr/bin/env bash
# Dr. MAS (arXiv 2602.08847): mathematics, solver and verifier, 2 rounds, a Qwen3-4B each, 4 GPUs.
# The authors' sets are loaded from the hub; TRAIN_FILE, TEST_FILE: rows as in example_math.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/math.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    "$@"
