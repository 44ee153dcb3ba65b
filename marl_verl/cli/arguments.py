"""Arguments that several commands have: --plugin FILE, and FILE or --run DIR with --step N."""

import argparse
import sys
from pathlib import Path

from marl_verl.errors import MarlError
from marl_verl.inspect.files import read_file


def add_plugin_argument(parser: argparse.ArgumentParser) -> None:
    output = "a Python file that registers parts, e.g. my_team.py; may be repeated"
    parser.add_argument("--plugin", action="append", default=[], type=Path, metavar="FILE", help=output)


def add_file_arguments(parser: argparse.ArgumentParser, file: str) -> None:
    """FILE, or --run DIR with --step N; `file` says what FILE is."""
    parser.add_argument("file", nargs="?", metavar="FILE", help=file)
    parser.add_argument("--run", type=Path, dest="folder", metavar="DIR", help="a run directory, instead of a file")
    parser.add_argument("--step", type=int, metavar="N", help="which step of the run; left out: the newest stored one")


def check_file_arguments(options: argparse.Namespace, example: str) -> None:
    """Raise MarlError unless a file or a run is named, and a step only of a run; `example` is a file's name."""
    command = options.command
    if options.folder is not None and options.file is not None:
        raise MarlError(f"'{options.file}' or --run '{options.folder}': {command} one of them")
    if options.folder is None and options.step is not None:
        raise MarlError("--step is a step of a run: give --run DIR with it")
    if options.folder is None and options.file is None:
        raise MarlError(f"which file? e.g. marl-verl {command} {example}, or marl-verl {command} --run runs/NAME")


def file_content(options: argparse.Namespace) -> tuple[str, bytes]:
    """FILE: how an error names it, and its bytes."""
    if options.file == "-":
        return "standard input", sys.stdin.buffer.read()
    return read_file(options.command, Path(options.file))
