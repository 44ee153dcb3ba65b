#!/usr/bin/env bash
# Single agent: one Qwen3-1.7B writes both parts in one answer of twice the length, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  '~marl.agents.one' \
  '~marl.agents.two' \
  '~marl.policies.one' \
  '~marl.policies.two' \
  '+marl.agents.writer={policy: writer}' \
  '+marl.policies.writer={model: {path: Qwen/Qwen3-1.7B}}' \
  marl.algorithm.name=grpo \
  '~marl.algorithm.options.normalize' \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=4 \
  data.max_response_length=512 \
  actor_rollout_ref.rollout.max_model_len=1536 \
  "$@"
