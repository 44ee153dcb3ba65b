#!/usr/bin/env bash
# Baseline: one agent that searches or answers by itself, with GRPO (with one agent Dr. MAS is the same).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search_grpo.sh" \
    marl.workflow.name=dr-mas-search-alone \
    '~marl.workflow.options.unparseable' \
    "marl.agents.answerer.instructions='You answer questions by what you find.'" \
    '~marl.agents.verifier' \
    '~marl.agents.searcher' \
    '~marl.policies.verifier' \
    '~marl.policies.searcher' \
    "$@"
