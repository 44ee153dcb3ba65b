#!/usr/bin/env bash
# MAGRPO's writing, TLDR (arXiv 2508.04652): two Qwen3-1.7B, one GPU each. Posts of trl-lib/tldr, or in TRAIN_FILE
# and TEST_FILE.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/writing.yaml" \
    marl.task.train_file="${TRAIN_FILE:-null}" \
    marl.task.test_file="${TEST_FILE:-null}" \
    "$@"
