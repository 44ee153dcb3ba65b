#!/usr/bin/env bash
# Crossed joint actions: 2 moves an agent and node make 4 joint actions, as many as the tree has.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.sampler.options.joint_actions=2 \
  marl.sampler.options.joint=cross \
  marl.algorithm.options.joint_mode=cross \
  "$@"
