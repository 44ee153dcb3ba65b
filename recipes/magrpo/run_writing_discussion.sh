#!/usr/bin/env bash
# Baseline without training, one-round discussion: both see both parts, and write anew.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_writing.sh" \
  marl.workflow.options.turns=2 \
  "$@"
