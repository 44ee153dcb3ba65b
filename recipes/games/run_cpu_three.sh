#!/usr/bin/env bash
# The number of agents: three agents and three items, a policy each.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    marl.task.options.items=3 \
    '+marl.agents.agent-3={policy: three}' \
    '+marl.policies.three={frozen: false, tiny: {steps: 200, good: 0.9}}' \
    "$@"
