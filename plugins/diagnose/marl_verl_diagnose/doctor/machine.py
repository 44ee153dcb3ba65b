"""The machine: GPUs, memory, disk, shared memory and sandbox."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
from marl_verl_sandbox import unavailable
from marl_verl_tiny.model import default_cache

from marl_verl.config.checks import DISK_BYTES
from marl_verl.config.hardware import has_accelerator
from marl_verl.run import run_dir
from marl_verl_diagnose.doctor import Finding, error, ok, warning

GIB = 1 << 30
SHARED = Path("/dev/shm")
SHARED_BYTES = 2 * GIB  # for verl's weight buffer. Docker's default is 64 MiB, with which Ray uses the disk


def check() -> Iterator[Finding]:
    yield from gpus()
    yield memory()
    yield from disks()
    if SHARED.is_dir():
        yield shared_memory()
    yield sandboxes()


def gpus() -> Iterator[Finding]:
    """The GPUs that NVIDIA's driver reports, and whether other processes use them."""
    listed = run_dir.gpus(("name", "memory.total", "memory.used"))
    if not listed and not has_accelerator():
        yield ok("gpu", f"none: runs use {os.cpu_count()} CPU cores, and tiny models")
    elif not listed:
        yield error("gpu", "nvidia-smi reports no GPU", "nvidia-smi   # shows the error")
    for number, (name, *sizes) in enumerate(gpu.values() for gpu in listed):
        check, mebibytes = f"gpu {number}", [int(size.removesuffix(" MiB")) for size in sizes if size.endswith(" MiB")]
        if len(mebibytes) < 2:  # [N/A] for a GPU with shared memory
            yield ok(check, name)
            continue
        total, used = mebibytes
        if used > total // 10:
            busy = f"{name}: {used / 1024:.1f} of {total / 1024:.0f} GiB are in use by other processes"
            yield warning(check, busy, "nvidia-smi   # lists them; or CUDA_VISIBLE_DEVICES=... without it")
        else:
            yield ok(check, f"{name}, {total / 1024:.0f} GiB")


def memory() -> Finding:
    """Free memory of the machine, compared with small runs on a CPU."""
    free = psutil.virtual_memory().available
    there = f"{free / GIB:.1f} GiB are free"
    if free < 8 * GIB:  # two policies on Ray, from the measured peaks (docs/benchmarks.md), rounded up
        message = f"{there}; one policy on a CPU needs about 5 GiB, two about 8"
        return warning("memory", message, "close other programs, or let the agents share a policy")
    return ok("memory", there)


def disks() -> Iterator[Finding]:
    """Free space for run directories, tiny models and scratch folders."""
    places = {"runs": Path.cwd(), "tiny models": default_cache(), "temporary files": Path(tempfile.gettempdir())}
    elsewhere = ("marl.run.dir=...", "export MARL_VERL_CACHE=...", "export TMPDIR=...")
    for (name, folder), do in zip(places.items(), elsewhere, strict=True):
        place = next(path for path in (folder, *folder.resolve().parents) if path.exists())
        free = shutil.disk_usage(place).free
        message = f"{free / GIB:.1f} GiB are free in '{place}', the folder for {name}"
        if not os.access(place, os.W_OK | os.X_OK):
            message = f"cannot write to '{place}', the folder for {name}"
            yield error(f"disk: {name}", message, f"{do}   # another folder")
        elif free < DISK_BYTES:
            yield error(f"disk: {name}", f"{message}; a run needs at least 1 GiB", f"free space, or {do}")
        else:
            yield ok(f"disk: {name}", message)


def shared_memory() -> Finding:
    """Free space in /dev/shm, through which the processes of a run exchange weights and objects."""
    free = shutil.disk_usage(SHARED).free
    message = f"{free / GIB:.2f} GiB are free in {SHARED}"
    if free >= SHARED_BYTES:
        return ok("shared memory", message)
    message += "; Ray's object store and verl's weight sync need more and may fail or be slow"
    do = "docker run --shm-size=8g ...   # or: sudo mount -o remount,size=8g /dev/shm"
    return warning("shared memory", message, do)


def sandboxes() -> Finding:
    """Which tiers of the sandbox for model-written code this machine gives; a run without such code needs none."""
    why = {tier: unavailable(tier) for tier in ("isolated", "limits")}
    message = f"tiers of this machine: {', '.join(tier for tier, reason in why.items() if not reason) or 'none'}"
    if not why["isolated"]:
        return ok("sandbox", message)
    do = "allow user namespaces, or marl.run.sandbox=external:URL of a server   # for tasks with model-written code"
    return warning("sandbox", f"{message}. {' '.join(filter(None, why.values()))}", do)
