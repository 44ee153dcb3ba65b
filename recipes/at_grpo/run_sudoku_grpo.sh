#!/usr/bin/env bash
# Baseline: the team with GRPO. Whole episodes, and all rows of a task in one group, over agents and turns.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_sudoku.sh" \
    marl.algorithm.name=grpo \
    marl.algorithm.options.rewards=alpha \
    '~marl.sampler.options' \
    marl.sampler.options.episodes=8 \
    "$@"
