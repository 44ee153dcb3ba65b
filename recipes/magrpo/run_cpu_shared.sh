#!/usr/bin/env bash
# One model for both agents.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.agents.right.policy=left \
  '~marl.policies.right' \
  "$@"
