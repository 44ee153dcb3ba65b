#!/usr/bin/env bash
# Roles on different scales: every plan gets 10 more. AT-GRPO compares plans with plans, so its advantages do not change.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.agents.planner.reward=at-bee-line-paid "$@"
