#!/usr/bin/env bash
# The same with two coder models that answer without long thoughts, four GPUs of 80 GB each: a first run on one node.
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
  'actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384' \
  'trainer.n_gpus_per_node=4' \
  "$@"
