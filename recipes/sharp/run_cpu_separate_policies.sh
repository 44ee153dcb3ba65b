#!/usr/bin/env bash
# Variant: two policies that share nothing, the planner's and the workers'.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    '~marl.policies.team' \
    marl.agents.planner.policy=planner \
    marl.agents.reader.policy=workers \
    marl.agents.idler.policy=workers \
    marl.agents.gossip.policy=workers \
    '+marl.policies.planner={tiny: {steps: 400, good: 0.5}}' \
    '+marl.policies.workers={tiny: {steps: 600, good: 0.5}}' \
    "$@"
