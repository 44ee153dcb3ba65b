"""When the CPU platform is active: only in processes of a marl-verl run on a machine without an accelerator.

Also whether flash-attn can be used, and the names and replica ranks of a policy's servers: unique per policy and run,
where verl's are unique per job only.
"""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

RUN_VARIABLE = "MARL_VERL_RUN"  # set by the trainer for itself and its Ray workers
HARDWARE_VARIABLE = "MARL_VERL_HARDWARE"  # cpu or gpu, as the config was composed; unset: detect
POLICIES_VARIABLE = "MARL_VERL_POLICIES"
"""JSON list of policy names, in the environment of every process of a run: each has its own range of replica ranks."""
RANKS_A_POLICY, RANKS_A_RUN, RUNS = 1_000, 10_000, 100_000
FLASH_ATTENTION = "import torch, flash_attn, flash_attn.ops.triton.cross_entropy"
"""Code that loads what transformers and verl use of flash-attn."""
_SUPPORTED = "assert not torch.cuda.is_available() or torch.cuda.get_device_capability() >= (8, 0)"
_ACCELERATORS = ("/dev/nvidiactl", "/dev/davinci_manager")


def in_run() -> bool:
    """Whether this process belongs to a marl-verl run."""
    return bool(os.environ.get(RUN_VARIABLE))


def has_accelerator() -> bool:
    """Whether to use an accelerator: from the environment, else from device files, without importing torch."""
    chosen = os.environ.get(HARDWARE_VARIABLE)
    return chosen == "gpu" if chosen else any(Path(device).exists() for device in _ACCELERATORS)


def on_gpu(config: Any) -> bool:
    """Whether a config was composed for accelerators, which the machine of the command line may lack."""
    return str(config.trainer.device) != "cpu"


def cpu_run() -> bool:
    """Whether the CPU platform applies to this process."""
    return in_run() and not has_accelerator()


@functools.cache
def flash_attention() -> bool:
    """Whether flash-attn is installed, loads, and supports this machine's GPU (Ampere or newer), if it has one. Loading
    it takes seconds, in a separate process: a build for another version of torch may crash."""
    if importlib.util.find_spec("flash_attn") is None:
        return False
    command = [sys.executable, "-c", f"{FLASH_ATTENTION}; {_SUPPORTED}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def ray_address(config: Any) -> str | None:
    """The address of the running Ray cluster that a run connects to; None if it starts a Ray session of its own."""
    address = config.ray_kwargs.ray_init.get("address")
    return None if address in (None, "local") else str(address)


def rollout_name(policy: str) -> str:
    """verl's name for the servers of a policy (`actor_rollout_ref.rollout.name`)."""
    return f"vllm-{policy}"


def first_replica_rank(name: str) -> int:
    """The first replica rank of the policy whose servers have this name. verl names the weight-sync socket in /tmp by
    Ray job and rank only, and every Ray session counts jobs from 1."""
    names = [rollout_name(policy) for policy in json.loads(os.environ[POLICIES_VARIABLE])]
    return first_rank_of(os.environ.get(RUN_VARIABLE, "")) + names.index(name) * RANKS_A_POLICY


def first_rank_of(run: str) -> int:
    """The first of the `RANKS_A_RUN` replica ranks of a run."""
    return zlib.crc32(run.encode()) % RUNS * RANKS_A_RUN
