#!/usr/bin/env bash
# Variant: exact Shapley values of the workers, by all coalitions, instead of leave-one-out.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.options.credit=shapley \
    "$@"
