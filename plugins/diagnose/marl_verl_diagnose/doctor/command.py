"""`marl-verl doctor [--json] [--quick] [--fix]`: check whether runs can work on this machine, and suggest fixes."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

from marl_verl.config.hardware import has_accelerator
from marl_verl.run.progress import Display
from marl_verl.run.terminal import harmless, show
from marl_verl_diagnose.doctor import Finding
from marl_verl_diagnose.doctor.packages import remove, unusable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check Python, packages, GPUs, memory, disk and plugins. Exit code 1 if a run cannot work."
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per finding")
    parser.add_argument("--quick", action="store_true", help="skip loading torch, vLLM and verl, which takes seconds")
    fix = "first uninstall packages that do not load on a CPU (CUDA builds of torchvision and the like)"
    parser.add_argument("--fix", action="store_true", help=fix)


def run(options: argparse.Namespace) -> int:
    if options.fix:
        names = [] if has_accelerator() else unusable()
        remove(names)
        print(f"uninstalled, unusable on this machine: {', '.join(names) or 'nothing'}", file=sys.stderr)
    if options.json:
        results = list(findings(options.quick, lambda _: None))
        show(json.dumps([asdict(result) for result in results], indent=2))
    else:
        results = shown(options.quick)
    return int(any(result.state == "error" for result in results))


def findings(quick: bool, note: Callable[[str], None]) -> Iterator[Finding]:
    """Yield each finding when its check ends; `note` is called with the name of the next check."""
    # imported here to keep `marl-verl doctor --help` fast
    from marl_verl_diagnose.doctor import loading, machine, packages

    yield from packages.check()
    yield from machine.check()
    yield from loading.plugins(note)
    if not quick:
        yield from loading.libraries(note)


def shown(quick: bool) -> list[Finding]:
    """Print each finding when its check ends, then the number of errors and warnings. Returns the findings."""
    display, results = Display(), []
    try:
        for result in findings(quick, display.note if display.console.is_terminal else lambda _: None):
            display.print(text(result))
            results.append(result)
    finally:
        display.close()
    count = {state: sum(result.state == state for result in results) for state in ("error", "warning")}
    counts = " and ".join(f"{number} {state}{'s' * (number > 1)}" for state, number in count.items() if number)
    display.print(f"{counts}, of {len(results)} findings" if counts else f"{len(results)} findings, all of them ok")
    if has_accelerator() and not count["error"]:
        display.print("next: marl-verl selftest   # runs the whole stack on a GPU, and writes a report")
    return results


def text(finding: Finding) -> str:
    """A finding on one line, and what to do about it on a second."""
    lines = [f"{finding.state:<8} {finding.check}: {finding.message}"]
    if finding.do:
        lines.append(f"{'':<8} do: {finding.do}")
    return "\n".join(harmless(" ".join(line.splitlines())) for line in lines)
