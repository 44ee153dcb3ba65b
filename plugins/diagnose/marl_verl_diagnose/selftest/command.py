"""`marl-verl selftest [--gpus N]`: run the whole stack on this machine with pytest, and write a report."""

import argparse
import itertools
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, unknown
from marl_verl.version import __version__

EXAMPLES = """
Each check is a short real run with tiny or random models: nothing is downloaded. All are made for 15 minutes on a GPU.
Exit code 1 if a check fails. Send FOLDER/report.json with a bug report.

  marl-verl selftest                           all checks on one GPU, or on the CPU of a machine without
  marl-verl selftest --gpus 4                  with policies on four GPUs
  marl-verl selftest --only versions log-probs
  marl-verl selftest --list                    the checks and their criteria
"""
KERNELS = ("flash-attn", "triton")
LINES = 40  # of a failed check's output in the report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check that training works on this machine: real runs of the stack, with figures."
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="GPUs to use (default: 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run only these checks")
    parser.add_argument("--list", action="store_true", help="list the checks, and run none")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the report")


def run(options: argparse.Namespace) -> int:
    # imported here to keep `marl-verl selftest --help` fast
    import pytest

    from marl_verl.config.hardware import has_accelerator
    from marl_verl.run.run_dir import PACKAGES, machine, packages
    from marl_verl.run.terminal import show
    from marl_verl_diagnose.selftest import checks

    known = {_name(name): value for name, value in vars(checks).items() if name.startswith("test_")}
    for name in options.only:
        if name not in known:
            raise unknown("check", name, known)
    if options.list:
        show("\n".join(f"{name:<12} {_criterion(known[name])}" for name in options.only or known))
        return 0
    hardware, here = "GPU" if has_accelerator() else "CPU", machine()
    most = len(here["gpus"])
    if options.gpus < 1 or (hardware == "GPU" and options.gpus > most > 0):
        raise MarlError(f"--gpus must be at least 1 and at most the number of GPUs ({most}), got {options.gpus}")
    folder = (options.output or _new_folder()).resolve()
    if folder.exists():
        raise MarlError(f"--output '{folder}' exists: give a new folder")
    folder.mkdir(parents=True)
    os.environ[checks.GPUS] = str(options.gpus)
    show(f"selftest on {options.gpus} {hardware}")
    results, begun, code = Results(), time.time(), 1
    settings = ["-m", "gpu", "-v", "--tb=short", "-ra", "--no-header", "--disable-warnings", "--noconftest"]
    settings += ["-c", os.devnull, "-p", "no:cacheprovider"]
    settings += [f"--rootdir={Path(checks.__file__).parent}", f"--basetemp={folder / 'work'}"]
    chosen = [f"{checks.__file__}::test_{name.replace('-', '_')}" for name in known if name in (options.only or known)]
    try:
        code = pytest.main([*settings, *chosen], plugins=[results])
        if code == pytest.ExitCode.INTERRUPTED:
            raise KeyboardInterrupt
    finally:  # Ctrl-C: a report of the checks until then
        content = {
            "marl_verl": __version__,
            "passed": code == 0,
            "date": time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(begun)),
            "seconds": round(time.time() - begun),
            "hardware": hardware,
            "gpus": options.gpus,
            "machine": here,
            "packages": packages((*PACKAGES, *KERNELS)),
            "checks": [check | {"criterion": _criterion(known[check["name"]])} for check in results.checks],
        }
        (folder / "report.json").write_text(json.dumps(content, indent=1, default=float) + "\n", encoding="utf-8")
    if not code:
        shutil.rmtree(folder / "work", ignore_errors=True)
    show(f"report {folder / 'report.json'}, {content['seconds']} s in all")
    return int(code != 0)


class Results:
    """A plugin of pytest that keeps the result of each check for the report."""

    def __init__(self) -> None:
        self.checks: list[dict[str, Any]] = []

    def pytest_configure(self, config: Any) -> None:
        config.addinivalue_line("markers", "gpu(seconds): a check of the stack, and its time limit")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or not report.passed:
            name, figures = _name(report.nodeid.rpartition("::")[2]), dict(report.user_properties)
            crash = getattr(report.longrepr, "reprcrash", None)
            check = {"name": name, "state": report.outcome, "seconds": report.duration, "figures": figures}
            check["message"] = crash.message if crash else ""
            output = f"{report.capstdout}{report.capstderr}".splitlines()
            check["log"] = output[-LINES:] if report.failed else []
            self.checks.append(check)


def _name(function: str) -> str:
    return function.removeprefix("test_").replace("_", "-")


def _criterion(check: Any) -> str:
    return " ".join(check.__doc__.split())


def _new_folder() -> Path:
    numbered = (Path(f"selftest-{number}") for number in itertools.count(1))
    return next(folder for folder in numbered if not os.path.lexists(folder))
