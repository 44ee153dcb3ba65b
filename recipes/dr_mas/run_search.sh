#!/usr/bin/env bash
# Dr. MAS (arXiv 2602.08847): search, verifier, searcher and answerer, up to 4 steps, a Qwen2.5-7B each, 8 GPUs.
# HotpotQA is loaded from the hub; TRAIN_FILE, TEST_FILE: its rows, or rows as in example_search.jsonl.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/search.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    "$@"
