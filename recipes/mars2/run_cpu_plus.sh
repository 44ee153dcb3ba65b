#!/usr/bin/env bash
# MARS2+: GSPO's sequence ratio with truncated importance sampling, and the overlong penalty (answers of more than 6 tokens here).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  'marl.algorithm.name=mars2-plus' \
  'marl.algorithm.options.loss=gspo-tis' \
  'marl.algorithm.options.overlong={L: 8, C: 2}' \
  "$@"
