#!/usr/bin/env bash
# Comparison: one 72B model searches its tree alone, with as many weights as the two of run_code_32b.sh, on a node of 8
# GPUs: weights, gradients and Adam's moments, 1.2 TB, are in its memory. The sources name no model: Kimi-Dev-72B is ours.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code_single.sh" \
  'marl.policies.qwen.model.path=moonshotai/Kimi-Dev-72B' \
  'actor_rollout_ref.rollout.tensor_model_parallel_size=8' \
  'actor_rollout_ref.actor.fsdp_config.offload_policy=true' \
  "$@"
