#!/usr/bin/env bash
# Kuhn Poker on a CPU: a tiny model plays against itself, with role-conditioned advantages.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/kuhn_cpu.yaml" "$@"
