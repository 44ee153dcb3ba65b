#!/usr/bin/env bash
# Baseline: a single agent searches its tree alone (their run_train_single_mcts.sh).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  '~marl.agents.boba' \
  '~marl.policies.boba' \
  'marl.sampler.options.arms=[qwen]' \
  'marl.validation.options.arms=[qwen]' \
  "$@"
