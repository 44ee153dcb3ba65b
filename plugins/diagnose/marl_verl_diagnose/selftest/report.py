"""The report of a selftest: report.json and report.md, with all that is needed to understand a failure elsewhere."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marl_verl.run.machine import PACKAGES, machine, packages
from marl_verl.version import __version__
from marl_verl_diagnose.selftest import Outcome

KERNELS = ("flash-attn", "triton")


def document(outcomes: Sequence[Outcome], gpus: int, hardware: str, begun: float) -> dict[str, Any]:
    """The content of report.json; a selftest has passed if no check failed."""
    return {
        "marl_verl": __version__,
        "passed": all(outcome.state != "failed" for outcome in outcomes),
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(begun)),
        "seconds": round(time.time() - begun),
        "hardware": hardware,
        "gpus": gpus,
        "machine": machine(),
        "packages": packages((*PACKAGES, *KERNELS)),
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
