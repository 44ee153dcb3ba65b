#!/usr/bin/env bash
# The planner is trained with a frozen executor: one half of "roles trained alone"; see run_cpu_joined.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.policies.executor.frozen=true "$@"
