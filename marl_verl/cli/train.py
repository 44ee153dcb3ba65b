"""`marl-verl train RECIPE [key=value ...]`: check everything, make what is needed, start the trainer, show it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from marl_verl.cli import summary
from marl_verl.cli.describe import describe
from marl_verl.cli.prepare import Plan, continue_run, make_run_directory, plan_run
from marl_verl.cli.progress import Display
from marl_verl.cli.trainer_process import TrainerProcess
from marl_verl.errors import MarlError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="?", type=Path, help="YAML file that begins with defaults: [marl_trainer, _self_]"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. trainer.total_training_steps=20 marl.run.seed=1"
    )
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the resolved team, start nothing"
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0 when training finished, 2 for a mistake in what the user gave, 1 for a crash, 130 after Ctrl-C."""
    begun = time.time()
    plan = _plan(options)
    display = Display()
    if options.dry_run:
        display.print(describe(plan))
        return 0
    display.print(describe(plan))
    folder = make_run_directory(plan, display)
    display.print(f"run {folder}, log {folder / 'train.log'}")
    process = TrainerProcess(folder, list(plan.team.policies), debug=options.debug)
    code = process.run(display, begun)
    if code == 0:
        summary.show(folder, display)
    return code


def _plan(options: argparse.Namespace) -> Plan:
    if options.resume is not None:
        overrides = ([str(options.recipe)] if options.recipe else []) + options.overrides
        return continue_run(options.resume, overrides)
    if options.recipe is None:
        raise MarlError("which recipe? e.g. marl-verl train recipes/quickstart/split_plan_path.yaml")
    return plan_run(options.recipe, options.overrides)
