#!/usr/bin/env bash
# Baseline: the solver alone, with GRPO (with one agent Dr. MAS is the same).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math_grpo.sh" \
    marl.workflow.options.rounds=1 \
    "marl.agents.solver.instructions='You solve mathematical problems.'" \
    '~marl.agents.verifier' \
    '~marl.policies.verifier' \
    "$@"
