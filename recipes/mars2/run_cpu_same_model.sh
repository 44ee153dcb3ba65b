#!/usr/bin/env bash
# Baseline: twice the same model. Two agents and two policies, of one family, size and warm-up: both are good at one half.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  'marl.policies.flipper.tiny={agents: [shifter], family: qwen3, steps: 600, good: 0.7}' \
  "$@"
