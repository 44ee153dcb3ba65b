#!/usr/bin/env bash
# Baseline: the authors' GRPO: whole episodes of a task are compared, and all rows of an episode get the same advantage.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_search_grpo.sh" \
    marl.algorithm.name=grpo-trajectory-mean \
    "$@"
