#!/usr/bin/env bash
# The paper's larger models: one Qwen3-8B per role (8 GPUs).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
    marl.policies.coder.model.path=Qwen/Qwen3-8B \
    marl.policies.tester.model.path=Qwen/Qwen3-8B \
    trainer.n_gpus_per_node=4 \
    "$@"
