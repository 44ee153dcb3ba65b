#!/usr/bin/env bash
# The paper's other regime: both roles act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    '+marl.policies.both={tiny: {steps: 800, good: 0.3}}' \
    marl.agents.planner.policy=both \
    marl.agents.executor.policy=both \
    '~marl.policies.planner' \
    '~marl.policies.executor' \
    "$@"
