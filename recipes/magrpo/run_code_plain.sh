#!/usr/bin/env bash
# No feedback between the turns: each agent sees its own code only.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.feedback=plain \
  "$@"
