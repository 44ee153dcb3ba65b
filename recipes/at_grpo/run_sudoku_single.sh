#!/usr/bin/env bash
# Baseline: a single agent that moves by itself, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_sudoku_grpo.sh" \
    marl.workflow.name=at-one-chat-walker \
    '+marl.agents.walker={policy: walker, reward: sudoku, instructions: You decide where to go.}' \
    '+marl.policies.walker={model: {path: Qwen/Qwen3-1.7B}}' \
    '~marl.agents.tool-caller' \
    '~marl.agents.planner' \
    '~marl.policies.tool-caller' \
    '~marl.policies.planner' \
    "$@"
