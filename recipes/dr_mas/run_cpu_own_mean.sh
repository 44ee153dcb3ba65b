#!/usr/bin/env bash
# Ablation: each agent's own mean, and one std for all.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    marl.algorithm.options.scale_group=task \
    "$@"
