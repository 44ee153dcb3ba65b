"""`marl-verl train RECIPE [key=value ...]`: check the recipe, prepare models, run the trainer, show progress."""

import argparse
from pathlib import Path

from marl_verl.api import train
from marl_verl.cli.arguments import add_backend_argument, add_plugin_argument, add_variant_arguments, show_variants
from marl_verl.cli.recipes import example
from marl_verl.config.variants import variant_overrides
from marl_verl.errors import MarlError


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
    parser.add_argument("--assume", metavar="gpus=8,flash-attn", help="in a dry run: what the run's machine has")


def run(options: argparse.Namespace) -> int:
    """Train. With --resume the first positional argument is an override."""
    recipe, overrides = options.recipe, options.overrides
    if options.resume is not None:
        if options.variant or options.variants:
            raise MarlError("a continued run keeps its variant: leave --variant out, or start a new run")
        recipe, overrides = None, [str(word) for word in (recipe, *overrides) if word is not None]
    elif recipe is None:
        raise MarlError(f"no recipe is given: e.g. marl-verl train {example()}")
    elif options.variants:
        return show_variants(recipe)
    else:
        overrides = [*variant_overrides(recipe, options.variant), *overrides]
    how = {"resume": options.resume, "dry_run": options.dry_run, "assume": options.assume}
    train(recipe, overrides, plugins=options.plugin, backend=options.backend, **how)
    return 0
