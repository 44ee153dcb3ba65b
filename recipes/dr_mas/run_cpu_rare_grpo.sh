#!/usr/bin/env bash
# Baseline of run_cpu_rare.sh: one mean and std for all rows of a task, over all agents.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_rare.sh" \
    marl.algorithm.name=grpo \
    marl.algorithm.options.rewards=penalty \
    'marl.algorithm.options.metrics=[amplification,second-moment]' \
    "$@"
