#!/usr/bin/env bash
# Dr. MAS (arXiv 2602.08847) on a CPU: solver and verifier with rewards of very different size, a policy each.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/dr_mas_cpu.yaml" "$@"
