#!/usr/bin/env bash
# Baseline: the authors' GRPO, whole episodes of a task are compared, and all their rows get one advantage.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_math_grpo.sh" \
    marl.algorithm.name=grpo-trajectory-mean \
    "$@"
