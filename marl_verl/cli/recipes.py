"""`marl-verl recipes [NAME] [--copy DIR]`: list the bundled recipes, or copy them to a folder of one's own."""

import argparse
import shutil
from pathlib import Path

import marl_verl
from marl_verl.config.variants import TABLE
from marl_verl.errors import MarlError, check_known
from marl_verl.run.terminal import show

EXAMPLES = """
A recipe is a YAML file. Its variants are in variants.yaml; the scripts train the settings of papers.

  marl-verl recipes sharp --copy .
  marl-verl train sharp/cpu.yaml --variants
  marl-verl train sharp/cpu.yaml --variant shapley trainer.total_training_steps=3
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the bundled recipes by folder, or copy them."
    parser.add_argument("name", nargs="?", metavar="NAME", help="a folder of recipes, e.g. sharp (default: all)")
    parser.add_argument("--copy", type=Path, metavar="DIR", help="copy the folder to DIR/NAME, which must be new")


def run(options: argparse.Namespace) -> int:
    folders = {path.name: path for path in sorted(bundled().iterdir()) if path.is_dir()}
    if options.name is not None:
        check_known("folder of recipes", options.name, folders)
    chosen = folders if options.name is None else {options.name: folders[options.name]}
    ignored = shutil.ignore_patterns("__pycache__", "runs")
    for name, folder in chosen.items():
        if options.copy is not None:
            if (copy := options.copy.expanduser() / name).exists():
                raise MarlError(f"'{copy}' exists: choose another --copy DIR")
            show(str(shutil.copytree(folder, copy, ignore=ignored)))
        else:
            names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and path.name != TABLE]
            recipes = [name for name in names if name.endswith(".yaml")]
            show(f"{name:<12} {', '.join(recipes or names)}")  # those for verl's trainer are scripts
    return 0


def bundled() -> Path:
    """The folder of recipes: in an installed package, else that of the clone."""
    package = Path(marl_verl.__file__).parent
    return next(path for path in (package / "recipes", package.parent / "recipes") if path.is_dir())
