#!/usr/bin/env bash
# MARS2+ on code with tests, Qwen3-8B and AReaL-boba-2-8B, as in the authors' script (TsinghuaC3I/MARTI,
# examples/mars2/run_train_multi_mcts.sh); arXiv 2602.07848. 16 GPUs of 80 GB: 8 for each model.
# APPS and LiveCodeBench are loaded from the hub; other sets: TRAIN_SET, TEST_SET. TRAIN_FILE, TEST_FILE: their rows, or
# JSON lines of {id, prompt, data: {public, private}}, see example_code.jsonl.
# It runs programs that models wrote in the sandbox, and requires its tier "isolated" (docs/sandbox.md).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/code.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.task.options.train="${TRAIN_SET:-apps}" \
    marl.task.options.test="${TEST_SET:-livecodebench}" \
    "$@"
