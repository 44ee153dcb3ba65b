#!/usr/bin/env bash
# Baseline: twice the same model, two policies.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" 'marl.policies.boba.model.path=Qwen/Qwen3-8B' "$@"
