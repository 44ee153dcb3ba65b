#!/usr/bin/env bash
# The executor learns beside a planner that stays as it is: the other half; see run_cpu_joined.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.policies.planner.frozen=true "$@"
