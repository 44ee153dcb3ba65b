#!/usr/bin/env bash
# GRPO on whole episodes: 10 a task, only the last turn's reward, which stands on every turn; one group a task.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.name=grpo \
  marl.sampler.sessions=10 \
  "$@"
