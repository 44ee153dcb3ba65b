#!/usr/bin/env bash
# Turn-blind groups: GRPO on the same 20 joint actions a task, every turn by its own reward, against all turns and agents.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.options.group=task \
  marl.algorithm.options.gamma=0.0 \
  marl.algorithm.options.normalize=true \
  marl.algorithm.options.loss=ppo-clip \
  marl.sampler.options.joint_actions=10 \
  marl.sampler.options.max_nodes=10 \
  "$@"
