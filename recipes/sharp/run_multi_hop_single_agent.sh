#!/usr/bin/env bash
# Baseline: one agent that searches by itself, 9 times at most, and no workers. Its role prompt says so.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    marl.algorithm.name=grpo \
    marl.workflow.options.alone=true \
    "marl.agents.planner.instructions='You answer questions. Search for what you need to know, one thing after the other, then answer.'" \
    "$@"
