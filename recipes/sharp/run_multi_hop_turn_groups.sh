#!/usr/bin/env bash
# Variant: AT-GRPO's groups, in which only the same turn of an agent is compared.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    marl.algorithm.options.group=turn \
    "$@"
