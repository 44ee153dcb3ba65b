#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): Sudoku 4 x 4, 5 turns, tool caller and planner, one Qwen3-1.7B per role (2 GPUs).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_plan_path.sh" \
    marl.task.name=sudoku \
    '~marl.task.options' \
    '+marl.task.options={size: 4}' \
    marl.agents.tool-caller.reward=sudoku-program \
    marl.agents.planner.reward=sudoku \
    "$@"
