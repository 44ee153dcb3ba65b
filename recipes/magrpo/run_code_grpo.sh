#!/usr/bin/env bash
# Turn-blind groups: GRPO on whole episodes, 10 a task; both turns and agents are one group.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.algorithm.name=grpo \
  '~marl.algorithm.options.gamma' \
  '~marl.algorithm.options.normalize' \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=10 \
  "$@"
