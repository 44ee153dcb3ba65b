#!/usr/bin/env bash
# Baseline: a coder alone, with GRPO: one program a problem, as it reads no tests.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code_grpo.sh" \
    marl.workflow.name=refine-code \
    '~marl.workflow.options' \
    '+marl.workflow.options={rounds: 0}' \
    '~marl.agents.tester' \
    '~marl.policies.tester' \
    "$@"
