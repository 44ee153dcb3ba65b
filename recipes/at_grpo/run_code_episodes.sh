#!/usr/bin/env bash
# Baseline: AT-GRPO's groups (task, turn, agent) without its tree, on whole episodes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
    marl.algorithm.name=at-grpo-sessions \
    '~marl.sampler.options' \
    marl.sampler.options.episodes=8 \
    "$@"
