#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): Sokoban on boards of 6 x 6, 5 turns, tool caller and planner, one Qwen3-1.7B per role (2 GPUs).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_plan_path.sh" \
    marl.task.name=sokoban \
    '~marl.task.options' \
    '+marl.task.options={size: 6, boxes: 1}' \
    marl.agents.tool-caller.reward=sokoban-program \
    marl.agents.planner.reward=sokoban \
    "$@"
