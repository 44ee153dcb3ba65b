#!/usr/bin/env bash
# The homogeneous variant with shared weights: one Qwen3-8B acts as both agents of the tree.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.agents.boba.policy=qwen \
  '~marl.policies.boba' \
  "$@"
