#!/usr/bin/env bash
# Baseline: every agent is rewarded by the team's score alone. Credits are still computed, but not used;
# marl.algorithm.options.credit=none saves their replays.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.options.w_marginal=0.0 \
    marl.algorithm.options.w_tool=0.0 \
    "$@"
