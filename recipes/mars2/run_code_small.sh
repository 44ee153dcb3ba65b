#!/usr/bin/env bash
# The same with two coder models that answer without long thoughts, one GPU of 80 GB each: a first run on a small machine.
# Models and lengths are ours, the rest is run_code.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  'marl.policies.qwen.model.path=Qwen/Qwen2.5-Coder-7B-Instruct' \
  'marl.policies.boba.model.path=deepseek-ai/deepseek-coder-6.7b-instruct' \
  'data.max_prompt_length=4096' \
  'data.max_response_length=2048' \
  'marl.algorithm.options.overlong={L: 2048, C: 256}' \
  'actor_rollout_ref.rollout.max_model_len=6144' \
  'trainer.n_gpus_per_node=1' \
  "$@"
