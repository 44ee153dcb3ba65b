#!/usr/bin/env bash
# A third turn, for joint actions whose node has not met yet: nodes with a mean reward above 0.9 are leaves.
# Rewards are shifted by -1, so that no later turn adds to the return of a team that has not met yet.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.workflow.options.turns=3 \
  marl.sampler.options.joint_actions=3 \
  marl.task.options.shift=-1 \
  marl.sampler.options.stop_above=-0.1 \
  "$@"
