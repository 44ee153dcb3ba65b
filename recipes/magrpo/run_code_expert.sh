#!/usr/bin/env bash
# Expert feedback: between turns a larger model rewrites both functions, and each coder sees the edits of its own. The
# expert is an external endpoint with OpenAI's API: EXPERT_URL, EXPERT_MODEL, and EXPERT_KEY_VARIABLE, the name of the
# environment variable that has its key (none by default). It writes up to 2048 tokens at temperature 0.3, as in the
# authors' code; the coders 256.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "$here/run_code.sh" \
  marl.workflow.options.feedback=expert \
  '+marl.agents.expert={policy: expert, sampling: {temperature: 0.3, top_p: 1.0}}' \
  "+marl.policies.expert.endpoint.url='${EXPERT_URL:-http://localhost:8000/v1}'" \
  "+marl.policies.expert.endpoint.model='${EXPERT_MODEL:-Qwen/Qwen2.5-Coder-32B-Instruct}'" \
  "+marl.policies.expert.endpoint.key_variable=${EXPERT_KEY_VARIABLE:-null}" \
  data.max_response_length=2048 \
  actor_rollout_ref.rollout.response_length=256 \
  "$@"
