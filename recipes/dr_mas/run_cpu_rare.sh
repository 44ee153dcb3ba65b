#!/usr/bin/env bash
# Three agents on one scale of rewards, the team's: the second guess is that of a reviser, which acts rarely.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    marl.task.options.likely=0.95 \
    marl.workflow.options.after_rejection=reviser \
    marl.algorithm.options.weights.team=1.0 \
    '~marl.algorithm.options.weights.role' \
    '~marl.agents.verifier.reward' \
    '+marl.agents.reviser={policy: reviser}' \
    'marl.policies.solver.tiny={steps: 2000, good: 0.95}' \
    '+marl.policies.reviser.tiny={steps: 1000, good: 0.3}' \
    "$@"
