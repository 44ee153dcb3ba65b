#!/usr/bin/env bash
# marl-verl-code on a CPU, with tiny models.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/code_cpu.yaml" "$@"
