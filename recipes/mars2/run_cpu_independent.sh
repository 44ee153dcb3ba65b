#!/usr/bin/env bash
# Baseline: no search. Eight episodes a task in which the two agents take turns, each row with the task as its group.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  'marl.algorithm.name=grpo' \
  '~marl.sampler.options' \
  'marl.sampler.options.episodes=8' \
  "$@"
