#!/usr/bin/env bash
# MAGRPO (arXiv 2508.04652) on a CPU: two tiny models meet at a place of which each knows half.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl "${COMMAND:-train}" "$here/magrpo_cpu.yaml" \
  "$@"
