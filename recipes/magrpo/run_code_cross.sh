#!/usr/bin/env bash
# Crossed joint actions: 2 completions an agent and node make 4 joint actions.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.sampler.options.joint_actions=2 \
  marl.sampler.options.joint=cross \
  marl.algorithm.options.joint_mode=cross \
  "$@"
