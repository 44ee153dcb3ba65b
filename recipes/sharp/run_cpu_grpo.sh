#!/usr/bin/env bash
# Baseline: a uniform team reward, and all turns of all agents of a task in one group.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec "$here/run_cpu.sh" \
    marl.algorithm.name=grpo \
    "$@"
