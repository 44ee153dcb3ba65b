#!/usr/bin/env bash
# Roles trained alone, then joined: the run's success at step 0 is the team's success before joint training.
# PLANNER, EXECUTOR: folders that `marl-verl export RUN --policy NAME --output FOLDER` wrote from the runs of
# run_cpu_planner_alone.sh and run_cpu_executor_alone.sh.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
    marl.policies.planner.tiny=null \
    marl.policies.executor.tiny=null \
    marl.policies.planner.model.path="${PLANNER:-exported/planner}" \
    marl.policies.executor.model.path="${EXECUTOR:-exported/executor}" \
    trainer.total_training_steps=1 \
    trainer.test_freq=-1 \
    "$@"
