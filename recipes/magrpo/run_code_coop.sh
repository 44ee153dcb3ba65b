#!/usr/bin/env bash
# CoopHumanEval with the authors' settings: trained from row 16 on, held out rows 0 to 15.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.task.options.train=coophumaneval \
  'marl.task.options.train_rows=[16, null]' \
  marl.task.options.test=coophumaneval \
  'marl.task.options.test_rows=[0, 16]' \
  "$@"
