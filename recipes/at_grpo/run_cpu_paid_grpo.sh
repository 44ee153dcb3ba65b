#!/usr/bin/env bash
# Baseline: GRPO with roles on different scales. It reinforces every plan and suppresses every move.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_grpo.sh" marl.agents.planner.reward=at-bee-line-paid "$@"
