#!/usr/bin/env bash
# Single agent: one model knows the whole place and moves for both, in one turn, with GRPO.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  '~marl.agents.left' \
  '~marl.agents.right' \
  '~marl.policies.left' \
  '~marl.policies.right' \
  '+marl.agents.alone={policy: alone}' \
  '+marl.policies.alone={tiny: {steps: 600, good: 0.45}}' \
  marl.algorithm.name=grpo \
  marl.workflow.options.turns=1 \
  '~marl.sampler.options' \
  marl.sampler.options.episodes=20 \
  "$@"
