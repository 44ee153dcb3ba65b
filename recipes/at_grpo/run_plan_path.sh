#!/usr/bin/env bash
# AT-GRPO (arXiv 2510.11062): Plan-Path on boards of 10 x 10, 5 turns, one Qwen3-1.7B per role (2 GPUs).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/plan_path.yaml" "$@"
