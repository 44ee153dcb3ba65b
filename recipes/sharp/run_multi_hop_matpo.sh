#!/usr/bin/env bash
# Baseline: MATPO, 0.9 accuracy + 0.1 format. Accuracy is the team's score, format whether the workflow could use an act;
# each episode counts once in the mean and std of its task (our reading: only the weights are given).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    marl.algorithm.name=grpo-trajectory-mean \
    '+marl.algorithm.options={weights: {team: 0.9, role: 0.1}}' \
    +marl.agents.planner.reward=sharp-format \
    +marl.agents.searcher-1.reward=sharp-format \
    +marl.agents.searcher-2.reward=sharp-format \
    +marl.agents.searcher-3.reward=sharp-format \
    "$@"
