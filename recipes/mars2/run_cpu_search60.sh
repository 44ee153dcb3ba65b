#!/usr/bin/env bash
# Inference search: validations spend 60 nodes a task, and answer with the node of the best public score.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" 'marl.validation.options.nodes=60' "$@"
