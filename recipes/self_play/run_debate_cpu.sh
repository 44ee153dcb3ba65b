#!/usr/bin/env bash
# Debate with a frozen judge on a CPU: a tiny model argues for both claims.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/debate_cpu.yaml" "$@"
