#!/usr/bin/env bash
# Both agents act with one policy: they cannot differ in their choices, only be random.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_cpu.sh" marl.agents.agent-2.policy=one '~marl.policies.two' "$@"
