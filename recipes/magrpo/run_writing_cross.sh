#!/usr/bin/env bash
# Crossed joint actions: all 16 pairs of 4 parts one and 4 parts two.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_writing.sh" \
  marl.sampler.options.joint=cross \
  marl.algorithm.options.joint_mode=cross \
  "$@"
