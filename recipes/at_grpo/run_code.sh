#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): code, 5 turns, one Qwen3-1.7B per role (2 GPUs). CodeContests is loaded from the hub; other
# sets: TRAIN_SET, TEST_SET (apps, livecodebench). TRAIN_FILE, TEST_FILE: their rows, or rows as in example_code.jsonl.
# It runs programs that models wrote in the sandbox, and requires its tier "isolated" (docs/sandbox.md).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/code.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    marl.task.options.train="${TRAIN_SET:-codecontests}" \
    marl.task.options.test="${TEST_SET:-codecontests}" \
    "$@"
