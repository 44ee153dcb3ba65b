#!/usr/bin/env bash
# The paper's other regime: both roles act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_sokoban.sh" \
    '+marl.policies.both={model: {path: Qwen/Qwen3-1.7B}}' \
    marl.agents.tool-caller.policy=both \
    marl.agents.planner.policy=both \
    '~marl.policies.tool-caller' \
    '~marl.policies.planner' \
    "$@"
