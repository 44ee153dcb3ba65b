#!/usr/bin/env bash
# Single agent: one Qwen3-4B on the two GPUs of run_writing.sh. COMMAND=eval: without training.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing_single.sh" \
  ++marl.policies.writer.model.path=Qwen/Qwen3-4B \
  trainer.n_gpus_per_node=2 \
  "$@"
