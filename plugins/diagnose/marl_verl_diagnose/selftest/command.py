"""`marl-verl selftest [--gpus N]`: run the whole stack on this machine, and write a report."""

import argparse
import itertools
import os
import shutil
import time
from pathlib import Path

from marl_verl.errors import MarlError

EXAMPLES = """
Each check is a short real run with tiny or random models: nothing is downloaded. All are made for 15 minutes on a GPU.
Exit code 1 if a check fails. Send FOLDER/report.json and report.md with a bug report.

  marl-verl selftest                           all checks on one GPU, or on the CPU of a machine without
  marl-verl selftest --gpus 4                  with policies on four GPUs
  marl-verl selftest --only versions log-probs
  marl-verl selftest --list                    the checks and their criteria
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check that training works on this machine: real runs of the stack, with figures."
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to use (default: 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run only these checks")
    parser.add_argument("--list", action="store_true", help="list the checks, and run none")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the report")


def run(options: argparse.Namespace) -> int:
    # imported here to keep `marl-verl selftest --help` fast
    from marl_verl.config.hardware import has_accelerator
    from marl_verl.run.machine import machine
    from marl_verl.run.progress import Display
    from marl_verl.run.terminal import show
    from marl_verl_diagnose.selftest import Place, checks, report, runner

    chosen = checks.choose(options.only)
    if options.list:
        show("\n".join(f"{check.name:<12} {check.criterion}" for check in chosen))
        return 0
    hardware = "GPU" if has_accelerator() else "CPU"
    there = len(machine()["gpus"])
    if options.gpus < 1 or (hardware == "GPU" and options.gpus > there > 0):
        raise MarlError(f"--gpus must be at least 1 and at most the number of GPUs ({there}), got {options.gpus}")
    place = Place((options.output or _new_folder()).resolve(), options.gpus, hardware == "GPU")
    if place.folder.exists():
        raise MarlError(f"--output '{place.folder}' exists: give a new folder")
    display, begun = Display(), time.time()
    outcomes = []
    try:
        for outcome in runner.run_all(chosen, place, display):
            outcomes.append(outcome)
    finally:  # Ctrl-C: a report of the checks until then
        content = report.document(outcomes, options.gpus, hardware, begun)
        if place.folder.exists():
            report.write(place.folder, content)
    failed = [outcome.name for outcome in outcomes if outcome.state == "failed"]
    if not failed:
        shutil.rmtree(place.work)
    display.print(f"report {place.folder / 'report.md'}, {content['seconds']} s in all")
    display.print(f"failed: {', '.join(failed)}; the runs are in {place.work}" if failed else "all checks passed")
    return int(bool(failed))


def _new_folder() -> Path:
    numbered = (Path(f"selftest-{number}") for number in itertools.count(1))
    return next(folder for folder in numbered if not os.path.lexists(folder))
