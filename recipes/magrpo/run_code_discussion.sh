#!/usr/bin/env bash
# Baseline without training, one-round discussion: each coder sees what the other wrote, and both write anew.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_code.sh" \
  marl.workflow.options.feedback=plain \
  +marl.workflow.options.shows=other \
  "$@"
