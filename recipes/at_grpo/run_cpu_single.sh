#!/usr/bin/env bash
# Baseline: a single agent that sees goal and walls and moves by itself, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_grpo.sh" \
    marl.workflow.name=at-one-walker \
    '+marl.agents.solo={policy: solo, reward: at-plan-path}' \
    '+marl.policies.solo={tiny: {steps: 400, good: 0.3}}' \
    '~marl.agents.planner' \
    '~marl.agents.executor' \
    '~marl.policies.planner' \
    '~marl.policies.executor' \
    "$@"
