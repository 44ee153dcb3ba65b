#!/usr/bin/env bash
# Variant: the search as the paper describes it, with Beta posteriors.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  'marl.sampler.options.strategy=stack' \
  'marl.sampler.options.prior=beta' \
  "$@"
