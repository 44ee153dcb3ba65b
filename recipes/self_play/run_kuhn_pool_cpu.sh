#!/usr/bin/env bash
# Kuhn Poker on a CPU against past versions of the policy.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/kuhn_pool_cpu.yaml" "$@"
