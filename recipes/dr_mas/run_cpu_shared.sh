#!/usr/bin/env bash
# Both agents act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    '+marl.policies.both={tiny: {steps: 800, good: 0.3}}' \
    marl.agents.solver.policy=both \
    marl.agents.verifier.policy=both \
    '~marl.policies.solver' \
    '~marl.policies.verifier' \
    "$@"
