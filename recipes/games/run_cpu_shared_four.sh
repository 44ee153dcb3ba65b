#!/usr/bin/env bash
# The number of agents: four agents and four items, one policy for all.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_shared.sh" \
    marl.task.options.items=4 \
    '+marl.agents.agent-3={policy: one}' \
    '+marl.agents.agent-4={policy: one}' \
    "$@"
