"""The machine: GPUs, memory, disk, shared memory, and what dead runs left on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from marl_verl.config.checks import CPU_BYTES, CPU_BYTES_A_POLICY, DISK_BYTES
from marl_verl.doctor import Finding, error, ok, warning
from marl_verl.models.tiny import default_cache
from marl_verl.platforms.active import HARDWARE_VARIABLE, has_accelerator
from marl_verl.process.cleanup import abandoned

GIB = 1 << 30
SHARED = Path("/dev/shm")
SHARED_BYTES = 2 * GIB  # verl's buffer of weights. Docker gives 64 MiB, and Ray then goes to the disk
CGROUP = Path("/sys/fs/cgroup/memory.max")
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader,nounits")


def check() -> Iterator[Finding]:
    yield from gpus()
    yield memory()
    yield from disks()
    if SHARED.is_dir():
        yield shared_memory()
    yield leftovers()


def gpus() -> Iterator[Finding]:
    """The GPUs that NVIDIA's driver tells of, and who else is on them."""
    chosen = os.environ.get(HARDWARE_VARIABLE)
    if chosen:
        message = f"{HARDWARE_VARIABLE}={chosen} says what the machine is, nobody looks"
        yield warning("gpu", message, f"unset {HARDWARE_VARIABLE}   # unless you know better")
    if shutil.which(QUERY[0]) is None:
        if has_accelerator():
            do = "put the folder of nvidia-smi on PATH, or install NVIDIA's driver again"
            yield error("gpu", "there is an accelerator's device file, and no nvidia-smi to tell of it", do)
        else:
            yield ok("gpu", f"none: runs use {os.cpu_count()} CPU cores, and tiny models")
        return
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        yield error("gpu", "nvidia-smi does not answer within 60 s", "sudo dmesg | grep -i nvrm   # then reboot")
        return
    found = [line.rsplit(",", 2) for line in done.stdout.splitlines() if line.count(",") >= 2]
    if done.returncode or not found:
        message = " ".join((done.stdout + done.stderr).split())
        yield error("gpu", f"nvidia-smi tells of no GPU: {message:.200}", "nvidia-smi   # the whole error")
        return
    for number, (name, total, used) in enumerate(found):
        check, message = f"gpu {number}", name.strip()
        if not (total.strip().isdigit() and used.strip().isdigit()):  # a GPU of shared memory says [N/A]
            yield ok(check, message)
        elif int(used) > int(total) // 10:
            message += f": {int(used) / 1024:.1f} of {int(total) / 1024:.0f} GiB are in use by others"
            yield warning(check, message, "nvidia-smi   # who; or CUDA_VISIBLE_DEVICES=... to leave it out")
        else:
            yield ok(check, f"{message}, {int(total) / 1024:.0f} GiB")


def memory() -> Finding:
    """Free memory, against what the smallest run on a CPU takes; a container may have less than its machine."""
    free = psutil.virtual_memory().available
    limit = CGROUP.read_text().strip() if CGROUP.is_file() else "max"
    there = f"{free / GIB:.1f} GiB are free"
    if limit.isdigit() and int(limit) < psutil.virtual_memory().total:
        there += f", and this container may use {int(limit) / GIB:.1f}"
        free = min(free, int(limit))
    one, two = CPU_BYTES + CPU_BYTES_A_POLICY, CPU_BYTES + 2 * CPU_BYTES_A_POLICY
    if free < one:
        return error("memory", f"{there}: one policy on a CPU takes about {one / GIB:.0f}", "close other programs")
    if free < two:
        message = f"{there}: enough for one policy, two on a CPU take about {two / GIB:.0f}"
        return warning("memory", message, "close other programs, or let the agents share a policy")
    return ok("memory", there)


def disks() -> Iterator[Finding]:
    """Where runs, tiny models and a run's scratch folder go."""
    places = {
        "runs": (Path.cwd(), "marl.run.dir=..."),
        "tiny models": (default_cache(), "export MARL_VERL_CACHE=..."),
        "temporary files": (Path(tempfile.gettempdir()), "export TMPDIR=..."),
    }
    for what, (wanted, elsewhere) in places.items():
        place = next(path for path in (wanted, *wanted.resolve().parents) if path.exists())
        free = shutil.disk_usage(place).free
        message = f"{free / GIB:.1f} GiB are free in '{place}', where {what} go"
        if not os.access(place, os.W_OK | os.X_OK):
            message = f"'{place}', where {what} go, cannot be written to"
            yield error(f"disk: {what}", message, f"{elsewhere}   # another folder")
        elif free < DISK_BYTES:
            do = f"make room, or {elsewhere}   # another disk"
            yield error(f"disk: {what}", f"{message}: a run takes 1 and more", do)
        else:
            yield ok(f"disk: {what}", message)


def shared_memory() -> Finding:
    """/dev/shm, through which the processes of a run hand each other weights and objects."""
    free = shutil.disk_usage(SHARED).free
    message = f"{free / GIB:.2f} GiB are free in {SHARED}"
    if free >= SHARED_BYTES:
        return ok("shared memory", message)
    message += ": Ray keeps its objects there and verl hands weights on, and what has no room fails or is slow"
    do = "docker run --shm-size=8g ...   # or: sudo mount -o remount,size=8g /dev/shm"
    return warning("shared memory", message, do)


def leftovers() -> Finding:
    """Runs whose processes were killed before they could clean up."""
    found = abandoned()
    if not found:
        return ok("leftovers", "no run that was killed has left anything")
    processes = sum(len(run.processes()) for run in found)
    message = f"{len(found)} killed runs have left {processes} processes, and {', '.join(run.scratch for run in found)}"
    do = " && ".join(f"python -m marl_verl.process.cleanup {run.scratch}" for run in found)
    return warning("leftovers", f"{message}; the next run removes them", do)
