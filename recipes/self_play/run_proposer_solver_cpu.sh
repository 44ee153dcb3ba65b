#!/usr/bin/env bash
# Proposer and solver on a CPU: the proposer is rewarded for problems that the solver solves in half of its attempts.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/proposer_solver_cpu.yaml" "$@"
