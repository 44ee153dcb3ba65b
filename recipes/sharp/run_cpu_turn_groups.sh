#!/usr/bin/env bash
# Variant: AT-GRPO's groups, in which an agent's first and second turn are compared apart.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.options.group=turn \
    "$@"
