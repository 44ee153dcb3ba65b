#!/usr/bin/env bash
# Variant: in a masked run everything after the first masked act is sampled again.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_multi_hop.sh" \
    marl.algorithm.options.credit_mode=full \
    "$@"
