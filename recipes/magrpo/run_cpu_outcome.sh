#!/usr/bin/env bash
# GRPO on whole episodes: 10 a task, only the last turn's reward, set on every turn; one group per task.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.name=grpo \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=10 \
  "$@"
