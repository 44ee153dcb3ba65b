#!/usr/bin/env bash
# A Qwen3-8B each, 8 GPUs.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math.sh" \
    marl.policies.solver.model.path=Qwen/Qwen3-8B \
    marl.policies.verifier.model.path=Qwen/Qwen3-8B \
    marl.pools.all.gpus=8 \
    "$@"
