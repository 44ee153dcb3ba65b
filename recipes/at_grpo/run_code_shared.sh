#!/usr/bin/env bash
# The paper's other regime: both roles act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
    '+marl.policies.both={model: {path: Qwen/Qwen3-1.7B}}' \
    marl.agents.coder.policy=both \
    marl.agents.tester.policy=both \
    '~marl.policies.coder' \
    '~marl.policies.tester' \
    "$@"
