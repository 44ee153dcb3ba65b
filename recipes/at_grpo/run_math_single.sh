#!/usr/bin/env bash
# Baseline: a single agent that answers in one act, with GRPO and the authors' longer lengths for it.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math_grpo.sh" \
    marl.workflow.name=at-one-reasoner \
    '~marl.workflow.options.turns' \
    '~marl.agents.tool-user' \
    '~marl.policies.tool-user' \
    data.max_prompt_length=8192 \
    data.max_response_length=8192 \
    "$@"
