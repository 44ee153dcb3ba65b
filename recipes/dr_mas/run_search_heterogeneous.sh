#!/usr/bin/env bash
# The paper's heterogeneous run: Qwen2.5-7B and Llama-3.2-3B. Which agent has which model is ours: the verifier, which
# routes, has the larger one.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search.sh" \
    marl.policies.verifier.model.path=Qwen/Qwen2.5-7B \
    marl.policies.searcher.model.path=meta-llama/Llama-3.2-3B-Instruct \
    marl.policies.answerer.model.path=meta-llama/Llama-3.2-3B-Instruct \
    "$@"
