#!/usr/bin/env bash
# Inference search of MARS2-T+: 60 nodes, and a draw for one more child is worth 0.98 less for each child of the node.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code_search60.sh" '+marl.validation.options.decay=0.98' "$@"
