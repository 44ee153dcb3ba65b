#!/usr/bin/env bash
# A Qwen2.5-3B each, 4 GPUs.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search.sh" \
    marl.policies.verifier.model.path=Qwen/Qwen2.5-3B \
    marl.policies.searcher.model.path=Qwen/Qwen2.5-3B \
    marl.policies.answerer.model.path=Qwen/Qwen2.5-3B \
    marl.pools.all.gpus=4 \
    "$@"
