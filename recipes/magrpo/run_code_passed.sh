#!/usr/bin/env bash
# Feedback between the turns: only whether all tests pass.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.feedback=passed \
  "$@"
