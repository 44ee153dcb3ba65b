#!/usr/bin/env bash
# Baseline without training, naive concatenation: the two coders write in parallel, once, and see nothing of each other.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_code.sh" \
  marl.workflow.options.turns=1 \
  "$@"
