"""`--plugin FILE`: the argument of every command that looks names up."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="a Python file that registers parts, e.g. my_team.py; may be repeated",
    )
