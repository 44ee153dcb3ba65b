"""`marl-verl doctor [--fix]`: check whether runs can work on this machine, and suggest fixes."""

import argparse
import sys
from collections.abc import Iterator

from marl_verl.config.hardware import has_accelerator
from marl_verl.run.terminal import harmless, show
from marl_verl_diagnose.doctor import Finding
from marl_verl_diagnose.doctor.packages import remove, unusable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check packages, GPUs, memory and disk. Exit code 1 if a run cannot work."
    fix = "first uninstall packages that do not load on a CPU (CUDA builds of torchvision and the like)"
    parser.add_argument("--fix", action="store_true", help=fix)


def run(options: argparse.Namespace) -> int:
    if options.fix:
        names = [] if has_accelerator() else unusable()
        remove(names)
        print(f"uninstalled, unusable on this machine: {', '.join(names) or 'nothing'}", file=sys.stderr)
    results = []
    for result in findings():
        results.append(result)
        show(text(result))
    errors, warnings = (sum(result.state == state for result in results) for state in ("error", "warning"))
    show(f"{errors} errors and {warnings} warnings, of {len(results)} findings")
    if has_accelerator() and not errors:
        show("next: marl-verl selftest   # runs the whole stack on a GPU, and writes a report")
    return int(errors > 0)


def findings() -> Iterator[Finding]:
    """Yield each finding when its check ends."""
    # imported here to keep `marl-verl doctor --help` fast
    from marl_verl_diagnose.doctor import machine, packages

    yield from packages.check()
    yield from machine.check()
    yield from packages.libraries()


def text(finding: Finding) -> str:
    """A finding on one line, and what to do about it on a second."""
    lines = [f"{finding.state:<8} {finding.check}: {finding.message}"]
    if finding.do:
        lines.append(f"{'':<8} do: {finding.do}")
    return "\n".join(harmless(" ".join(line.splitlines())) for line in lines)
