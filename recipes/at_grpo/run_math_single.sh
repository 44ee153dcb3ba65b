#!/usr/bin/env bash
# Baseline: a single agent that answers in one act, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math_grpo.sh" \
    marl.workflow.name=at-one-reasoner \
    '~marl.workflow.options.turns' \
    '~marl.agents.tool-user' \
    '~marl.policies.tool-user' \
    "$@"
