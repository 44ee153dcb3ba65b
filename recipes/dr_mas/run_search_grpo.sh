#!/usr/bin/env bash
# Baseline: one mean and std for all rows of a task, over all agents; the same rewards.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search.sh" \
    marl.algorithm.name=grpo \
    marl.algorithm.options.rewards=penalty \
    'marl.algorithm.options.metrics=[amplification,second-moment]' \
    "$@"
