#!/usr/bin/env bash
# Baseline: one agent with all the tools, and no workers.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.name=grpo \
    marl.workflow.options.alone=true \
    "$@"
