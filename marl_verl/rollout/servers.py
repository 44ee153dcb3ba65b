"""A vLLM server group per policy: tell verl the rollout name of each.

Touches verl: `RolloutReplicaRegistry` and `workers.rollout.base._ROLLOUT_REGISTRY`.
"""

from __future__ import annotations

import json
import os
from typing import Any

from marl_verl.config.server_names import POLICIES_VARIABLE, rollout_name


def register_policy_servers() -> None:
    """Tell verl the rollout name of every policy of this run, in this process."""
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    for policy in json.loads(os.environ.get(POLICIES_VARIABLE, "[]")):
        name = rollout_name(policy)
        RolloutReplicaRegistry.register(name, _load_replica)
        _ROLLOUT_REGISTRY[(name, "async")] = "marl_verl.rollout.vllm_servers.PolicyServerAdapter"


def _load_replica() -> Any:
    from marl_verl.rollout.vllm_servers import PolicyReplica

    return PolicyReplica
