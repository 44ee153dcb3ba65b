#!/usr/bin/env bash
# marl-verl-writing on a CPU, with tiny models.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/writing_cpu.yaml" "$@"
