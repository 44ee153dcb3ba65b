#!/usr/bin/env bash
# Single agent: one Qwen2.5-Coder-7B on the two GPUs of run_code.sh. COMMAND=eval: without training.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code_single.sh" \
  ++marl.policies.coder.model.path=Qwen/Qwen2.5-Coder-7B \
  trainer.n_gpus_per_node=2 \
  "$@"
