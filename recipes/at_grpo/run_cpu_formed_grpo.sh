#!/usr/bin/env bash
# Baseline: turn-blind groups where roles are on different scales.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_grpo.sh" marl.agents.planner.reward=at-plan-path-formed "$@"
