#!/usr/bin/env bash
# Turn-blind groups: GRPO, where both agents are one group.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  marl.algorithm.name=grpo \
  '~marl.algorithm.options.normalize' \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=4 \
  "$@"
