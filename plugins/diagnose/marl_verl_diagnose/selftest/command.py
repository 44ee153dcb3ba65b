"""`marl-verl selftest [--gpus N]`: run the whole stack on this machine with pytest, and write a report."""

import argparse
import itertools
import os
import shutil
from pathlib import Path

from marl_verl.cli.arguments import at_least

EXAMPLES = """
Each check is a short real run with tiny or random models: nothing is downloaded. All are made for 15 minutes on a GPU.
Exit code 1 if a check fails. Send FOLDER/report.xml with a bug report.

  marl-verl selftest                           all checks on one GPU, or on the CPU of a machine without
  marl-verl selftest --gpus 4                  with policies on four GPUs
  marl-verl selftest --only versions log-probs
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check that training works on this machine: real runs of the stack, with figures."
    parser.add_argument("--gpus", type=at_least(1), default=1, metavar="N", help="GPUs to use (default: 1)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="run only these checks")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="a new folder for the report")


def run(options: argparse.Namespace) -> int:
    # imported here to keep `marl-verl selftest --help` fast
    import pytest

    from marl_verl.config.hardware import has_accelerator
    from marl_verl.run.terminal import show
    from marl_verl_diagnose.selftest import checks

    numbered = (Path(f"selftest-{number}") for number in itertools.count(1))
    folder = (options.output or next(folder for folder in numbered if not os.path.lexists(folder))).resolve()
    folder.mkdir(parents=True)
    os.environ[checks.GPUS] = str(options.gpus)
    show(f"selftest on {options.gpus} {'GPU' if has_accelerator() else 'CPU'}")
    report, module = folder / "report.xml", str(checks.__file__)
    settings = ["-m", "gpu", "-v", "--tb=short", "-ra", "--no-header", "--disable-warnings", "--noconftest"]
    settings += ["-c", os.devnull, "-p", "no:cacheprovider", f"--junitxml={report}", "-o", "junit_logging=all"]
    settings += ["-o", "junit_log_passing_tests=false", f"--rootdir={folder}", f"--basetemp={folder / 'work'}"]
    settings += ["-o", "markers=gpu(seconds): a check of the stack, and its time limit"]
    chosen = [f"{module}::test_{name.replace('-', '_')}" for name in options.only] or [module]
    code = pytest.main([*settings, *chosen])
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if not code:
        shutil.rmtree(folder / "work", ignore_errors=True)
    show(f"report {report}")
    return int(code != 0)
