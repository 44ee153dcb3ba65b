#!/usr/bin/env bash
# Without the tree: 10 episodes that share the first observation only, so as many joint actions (20 a task) as the tree has; a
# turn is compared with the same turn of the other episodes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.options.group=turn \
  marl.sampler.options.joint_actions=10 \
  marl.sampler.options.max_nodes=10 \
  "$@"
