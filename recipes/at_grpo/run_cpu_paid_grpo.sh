#!/usr/bin/env bash
# Baseline: GRPO with roles on different scales. Every plan looks good to it, and every move bad.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu_grpo.sh" marl.agents.planner.reward=at-bee-line-paid "$@"
