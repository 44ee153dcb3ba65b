#!/usr/bin/env bash
# The executor is trained with a frozen planner: the other half; see run_cpu_joined.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.policies.planner.frozen=true "$@"
