#!/usr/bin/env bash
# No feedback between the turns: agents see only both codes.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.feedback=plain \
  "$@"
