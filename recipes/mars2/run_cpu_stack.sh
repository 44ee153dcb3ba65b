#!/usr/bin/env bash
# Variant: the search that the paper describes: first the agent, then generate or continue, then the child; Beta posteriors.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" \
  'marl.sampler.options.strategy=stack' \
  'marl.sampler.options.prior=beta' \
  'marl.validation.options.strategy=stack' \
  'marl.validation.options.prior=beta' \
  "$@"
