#!/usr/bin/env bash
# Baseline: a single agent searches its tree of 8 nodes alone.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  '~marl.agents.flipper' \
  '~marl.policies.flipper' \
  'marl.sampler.options.arms=[shifter]' \
  'marl.validation.options.arms=[shifter]' \
  "$@"
