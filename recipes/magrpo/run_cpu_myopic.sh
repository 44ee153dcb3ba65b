#!/usr/bin/env bash
# The same tree without returns: the return of a joint action is its own reward only.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  marl.algorithm.options.gamma=0.0 \
  "$@"
