#!/usr/bin/env bash
# Ablation: no shaping.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" 'marl.algorithm.options.gamma=0.0' "$@"
