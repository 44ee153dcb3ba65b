#!/usr/bin/env bash
# Roles on different scales: a plan earns 10 more, whatever it is. AT-GRPO compares plans with plans, and does not notice.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.agents.planner.reward=at-bee-line-paid "$@"
