"""`marl-verl train RECIPE [key=value ...]`: check everything, make what is needed, start the trainer, show it."""

from __future__ import annotations

import argparse
from pathlib import Path

from marl_verl.api import train
from marl_verl.cli.plugin_files import add_plugin_argument
from marl_verl.errors import MarlError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "recipe", nargs="?", type=Path, help="YAML file that begins with defaults: [marl_trainer, _self_]"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="e.g. trainer.total_training_steps=20 marl.run.seed=1"
    )
    add_plugin_argument(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    parser.add_argument(
        "--dry-run", action="store_true", help="check everything, print the resolved team, start nothing"
    )


def run(options: argparse.Namespace) -> int:
    """Train. With --resume the first word is an override, too."""
    if options.resume is not None:
        overrides = [str(word) for word in (options.recipe, *options.overrides) if word is not None]
        train(None, overrides, plugins=options.plugin, resume=options.resume, dry_run=options.dry_run)
    elif options.recipe is None:
        raise MarlError("which recipe? e.g. marl-verl train recipes/quickstart/split_plan_path.yaml")
    else:
        train(options.recipe, options.overrides, plugins=options.plugin, dry_run=options.dry_run)
    return 0
