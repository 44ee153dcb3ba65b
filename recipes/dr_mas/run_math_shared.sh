#!/usr/bin/env bash
# Both agents act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math.sh" \
    '+marl.policies.both={pool: all, model: {path: Qwen/Qwen3-4B}}' \
    marl.agents.solver.policy=both \
    marl.agents.verifier.policy=both \
    '~marl.policies.solver' \
    '~marl.policies.verifier' \
    "$@"
