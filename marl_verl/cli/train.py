"""`marl-verl train RECIPE [key=value ...]`: check the recipe, prepare models, run the trainer, show progress."""

import argparse
import sys
from pathlib import Path

from marl_verl.api import train
from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument, add_variant_arguments, show_variants
from marl_verl.config.hardware import has_accelerator
from marl_verl.config.variants import variant_overrides
from marl_verl.errors import MarlError
from marl_verl.extensions import extension


def add_arguments(parser: argparse.ArgumentParser) -> None:
    recipe = "YAML file that begins with defaults: [marl_trainer, _self_]"
    overrides = "e.g. trainer.total_training_steps=20 marl.run.seed=1"
    parser.add_argument("recipe", nargs="?", type=Path, help=recipe)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=overrides)
    add_variant_arguments(parser)
    add_plugin_argument(parser)
    add_backend_argument(parser)
    parser.add_argument("--resume", type=Path, metavar="RUN", help="continue the run in this directory")
    dry_run = "check everything, print the resolved team, start nothing"
    parser.add_argument("--dry-run", action="store_true", help=dry_run)


def run(options: argparse.Namespace) -> int:
    """Train. With --resume the first positional argument is an override."""
    recipe, overrides = options.recipe, options.overrides
    if options.resume is not None:
        if options.variant or options.variants:
            raise MarlError("a continued run keeps its variant: leave --variant out, or start a new run")
        recipe, overrides = None, [str(word) for word in (recipe, *overrides) if word is not None]
    elif recipe is not None:
        if options.variants:
            return show_variants(recipe)
        overrides = [*variant_overrides(recipe, options.variant), *overrides]
    here = recipe is not None and options.own_process and _begins_locally(options, overrides)
    if here and (local := extension("backend", "local")) is not None:
        return int(local.train(recipe, overrides, options))
    how = {"resume": options.resume, "dry_run": options.dry_run}
    train(recipe, overrides, plugins=options.plugin, backend=options.backend, **how)
    return 0


def _begins_locally(options: argparse.Namespace, overrides: list[str]) -> bool:
    """Whether a new run will probably work in this process, which can import verl while a child plans the run."""
    if options.dry_run or has_accelerator() or sys.platform != "linux":
        return False
    key = "marl.run.backend"
    if options.backend is not None or any(line.startswith(key) for line in overrides):
        return options.backend is not None or f"{key}=local" in overrides
    return options.recipe.is_file() and "backend: local" in options.recipe.read_text(errors="replace")
