#!/usr/bin/env bash
# Variant: two policies that share nothing, the planner's and the workers', on 8 GPUs each.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    '~marl.policies.team' \
    marl.agents.planner.policy=planner \
    marl.agents.searcher-1.policy=workers \
    marl.agents.searcher-2.policy=workers \
    marl.agents.searcher-3.policy=workers \
    '+marl.policies.planner={model: {path: Qwen/Qwen3-8B}}' \
    '+marl.policies.workers={model: {path: Qwen/Qwen3-8B}}' \
    "$@"
