#!/usr/bin/env bash
# The same tree without returns: a joint action is worth its own reward only.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.options.gamma=0.0 \
  "$@"
