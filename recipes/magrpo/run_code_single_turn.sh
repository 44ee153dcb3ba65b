#!/usr/bin/env bash
# One turn: no feedback, no returns.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.turns=1 \
  "$@"
