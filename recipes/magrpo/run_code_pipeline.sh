#!/usr/bin/env bash
# Baseline without training, sequential pipeline: the main coder writes after the helper, and sees its function.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_code.sh" \
  marl.workflow.options.turns=1 \
  +marl.workflow.options.order=sequential \
  "$@"
