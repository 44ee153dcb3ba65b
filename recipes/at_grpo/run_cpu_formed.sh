#!/usr/bin/env bash
# Roles on different scales: the planner has a format reward of 2 besides, which nearly every plan earns.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.agents.planner.reward=at-plan-path-formed "$@"
