#!/usr/bin/env bash
# MARS2 without the plus: PPO's clipped token ratio, no overlong penalty. The importance weight stays: rows are older than the weights.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  'marl.algorithm.name=mars2' \
  'marl.algorithm.options.loss=ppo-clip-tis' \
  'marl.algorithm.options.overlong=null' \
  "$@"
