#!/usr/bin/env bash
# Ablation: no shaping. A node's return is its own reward, whatever its parent and siblings earned.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" 'marl.algorithm.options.gamma=0.0' "$@"
