#!/usr/bin/env bash
# Variant: in a masked run the planner's text stays as it was. Here its answer does too, so no worker has a credit.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.options.credit_mode=rescore \
    "$@"
