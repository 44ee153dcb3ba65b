#!/usr/bin/env bash
# Baseline: MATPO, 0.9 accuracy + 0.1 format, as in run_multi_hop_matpo.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_web.sh" \
    marl.algorithm.name=grpo-trajectory-mean \
    '+marl.algorithm.options={weights: {team: 0.9, role: 0.1}}' \
    +marl.agents.planner.reward=sharp-format \
    +marl.agents.worker-1.reward=sharp-format \
    +marl.agents.worker-2.reward=sharp-format \
    +marl.agents.worker-3.reward=sharp-format \
    "$@"
