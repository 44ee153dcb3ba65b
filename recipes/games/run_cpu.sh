#!/usr/bin/env bash
# Homogeneous agents on a CPU: one prompt, equal initial models, a policy each. Do they come to differ?
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/games_cpu.yaml" "$@"
