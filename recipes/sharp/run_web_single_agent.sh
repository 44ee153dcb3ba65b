#!/usr/bin/env bash
# Baseline: one agent that uses the tools by itself, 15 times at most, and no workers. Its role prompt says so.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_web.sh" \
    marl.algorithm.name=grpo \
    marl.workflow.options.alone=true \
    "marl.agents.planner.instructions='You answer questions. Use your tools, one after the other, then answer.'" \
    "$@"
