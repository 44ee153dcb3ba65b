"""Names and replica ranks of a policy's servers: unique per policy and run, where verl's are unique per job only."""

import json
import os
import zlib

from marl_verl.config.hardware import RUN_VARIABLE

POLICIES_VARIABLE = "MARL_VERL_POLICIES"
"""JSON list of policy names, in the environment of every process of a run: each has its own range of replica ranks."""
RANKS_A_POLICY, RANKS_A_RUN, RUNS = 1_000, 10_000, 100_000


def rollout_name(policy: str) -> str:
    """verl's name for the servers of a policy (`actor_rollout_ref.rollout.name`)."""
    return f"vllm-{policy}"


def first_replica_rank(name: str) -> int:
    """The first replica rank of the policy whose servers have this name.

    verl names the weight-sync socket in /tmp by Ray job and rank only, and every Ray session counts jobs from 1.
    """
    names = [rollout_name(policy) for policy in json.loads(os.environ[POLICIES_VARIABLE])]
    return first_rank_of(os.environ.get(RUN_VARIABLE, "")) + names.index(name) * RANKS_A_POLICY


def first_rank_of(run: str) -> int:
    """The first of the `RANKS_A_RUN` replica ranks of a run."""
    return zlib.crc32(run.encode()) % RUNS * RANKS_A_RUN
