#!/usr/bin/env bash
# CoopHumanEval, with the settings of the authors' code for it. Which rows are held out is our choice.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.task.options.train=coophumaneval \
  'marl.task.options.train_rows=[16, null]' \
  marl.task.options.test=coophumaneval \
  'marl.task.options.test_rows=[0, 16]' \
  "$@"
