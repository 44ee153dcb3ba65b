#!/usr/bin/env bash
# Team against team on a CPU: two teams of a holder and an asker answer the same questions.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/inventory_match_cpu.yaml" "$@"
