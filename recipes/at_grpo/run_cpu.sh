#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062) on a CPU: planner and executor in turns, greedy tree, a policy a role.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/at_grpo_cpu.yaml" "$@"
