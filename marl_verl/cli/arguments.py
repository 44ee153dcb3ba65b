"""Arguments shared by several commands: --plugin FILE, --local, --variant NAME."""

import argparse
from collections.abc import Callable
from pathlib import Path

from marl_verl.config.variants import variants_of
from marl_verl.run.terminal import show


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option with a whole number, `least` or more."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"must be {least} or more, got {value}")
        return value

    return number


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    text = "a Python file that registers parts, e.g. my_team.py; may be repeated"
    parser.add_argument("--plugin", action="append", default=[], type=Path, metavar="FILE", help=text)


def add_backend_argument(parser: argparse.ArgumentParser) -> None:
    text = "work in this process, without Ray and vLLM: marl.run.backend=local"
    parser.add_argument("--local", action="store_const", const="local", dest="backend", help=text)


def add_variant_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a variant of the recipe, applied before the overrides; may be repeated"
    parser.add_argument("--variant", action="append", default=[], metavar="NAME", help=text)
    parser.add_argument("--variants", action="store_true", help="list the variants of the recipe")


def show_variants(recipe: Path) -> int:
    variants = variants_of(recipe)
    show("\n".join(f"{name:<18}  {variants[name].about}" for name in variants) or f"'{recipe}' has no variants")
    return 0
