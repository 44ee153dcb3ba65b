#!/usr/bin/env bash
# Variant: Shapley values from two random orders of joining, with truncation.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    marl.algorithm.options.credit=shapley \
    marl.algorithm.options.credit_exact_up_to=0 \
    marl.algorithm.options.credit_permutations=2 \
    marl.algorithm.options.credit_truncation=0.1 \
    "$@"
