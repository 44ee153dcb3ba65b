#!/usr/bin/env bash
# MARS2 on a CPU: two tiny models of two families search one tree a task. Everything is in mars2_cpu.yaml.
# Source: arXiv 2602.07848. Further arguments override anything: run_cpu.sh trainer.total_training_steps=5
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec marl-verl train "$here/mars2_cpu.yaml" "$@"
