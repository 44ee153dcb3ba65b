#!/usr/bin/env bash
# Advantages not divided by their std in each group of siblings.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  marl.algorithm.options.normalize=false \
  "$@"
