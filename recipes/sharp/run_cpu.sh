#!/usr/bin/env bash
# SHARP (arXiv 2602.08335, second hand) on three ledgers: one tiny model for all agents, two minutes on two CPU cores.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

exec marl-verl train "$here/sharp_cpu.yaml" \
    marl.task.train_size=4096 \
    trainer.total_training_steps=40 \
    "$@"
