#!/usr/bin/env bash
# Baseline: one policy for both agents, with one mean and std for all rows of a task.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_shared.sh" \
    marl.algorithm.name=grpo \
    marl.algorithm.options.rewards=penalty \
    'marl.algorithm.options.metrics=[amplification,second-moment]' \
    "$@"
