#!/usr/bin/env bash
# One LoRA per role on one base model (rank 16, alpha 32, as in the authors' configs).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
    actor_rollout_ref.model.lora_rank=16 \
    actor_rollout_ref.model.lora_alpha=32 \
    "$@"
