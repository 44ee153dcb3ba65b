#!/usr/bin/env bash
# Nothing is told between the turns but the code of both.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.feedback=plain \
  "$@"
