#!/usr/bin/env bash
# Baseline without training, sequential pipeline: the second writer writes after the first, and sees its part.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_writing.sh" \
  +marl.workflow.options.order=sequential \
  "$@"
