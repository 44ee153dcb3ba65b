"""When the CPU platform is active: only in processes of a marl-verl run on a machine without an accelerator."""

from __future__ import annotations

import os
from pathlib import Path

RUN_VARIABLE = "MARL_VERL_RUN"  # set by the trainer for itself and its Ray workers
HARDWARE_VARIABLE = "MARL_VERL_HARDWARE"  # cpu or gpu, as the config was composed; unset: detect
_ACCELERATORS = ("/dev/nvidiactl", "/dev/davinci_manager")


def in_run() -> bool:
    """Whether this process belongs to a marl-verl run."""
    return bool(os.environ.get(RUN_VARIABLE))


def has_accelerator() -> bool:
    """Whether to use an accelerator: from the environment, else from device files, without importing torch."""
    chosen = os.environ.get(HARDWARE_VARIABLE)
    return chosen == "gpu" if chosen else any(Path(device).exists() for device in _ACCELERATORS)


def cpu_run() -> bool:
    """Whether the CPU platform applies to this process."""
    return in_run() and not has_accelerator()
