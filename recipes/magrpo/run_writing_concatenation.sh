#!/usr/bin/env bash
# Baseline without training, naive concatenation: the two writers write in parallel, once, and see nothing of each other.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
COMMAND=eval exec "$here/run_writing.sh" \
  "$@"
