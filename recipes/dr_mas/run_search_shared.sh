#!/usr/bin/env bash
# All three agents act with one policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search.sh" \
    '+marl.policies.all={pool: all, model: {path: Qwen/Qwen2.5-7B}}' \
    marl.agents.verifier.policy=all \
    marl.agents.searcher.policy=all \
    marl.agents.answerer.policy=all \
    '~marl.policies.verifier' \
    '~marl.policies.searcher' \
    '~marl.policies.answerer' \
    "$@"
