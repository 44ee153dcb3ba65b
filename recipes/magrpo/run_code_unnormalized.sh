#!/usr/bin/env bash
# Advantages not divided by their std in each group of siblings, as in the paper.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.algorithm.options.normalize=false \
  "$@"
