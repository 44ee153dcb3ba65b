#!/usr/bin/env bash
# Single agent: one Qwen2.5-Coder-3B writes both functions in one answer of twice the length, in one turn, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  '~marl.agents.helper' \
  '~marl.agents.main' \
  '~marl.policies.helper' \
  '~marl.policies.main' \
  '+marl.agents.coder={policy: coder}' \
  '+marl.policies.coder={model: {path: Qwen/Qwen2.5-Coder-3B}}' \
  marl.algorithm.name=grpo \
  '~marl.algorithm.options.gamma' \
  '~marl.algorithm.options.normalize' \
  marl.workflow.options.turns=1 \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=4 \
  data.max_response_length=512 \
  actor_rollout_ref.rollout.max_model_len=2560 \
  "$@"
