"""`marl-verl`: one module a command, each imported only when it is called, so that `--help` is quick."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from collections.abc import Sequence

from marl_verl import __version__
from marl_verl.errors import MarlError

COMMANDS = {
    "train": "train a team as a recipe says",
    "plugins": "list plugins and every name they register",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 0; 2 for a user's mistake, told in one sentence; 130 after Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in arguments
    try:
        options = _parser(arguments).parse_args(arguments)
        return int(importlib.import_module(f"marl_verl.cli.{options.command}").run(options))
    except MarlError as error:
        if debug:
            traceback.print_exc()
        print(f"marl-verl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("marl-verl: interrupted", file=sys.stderr)
        return 130


def _parser(arguments: list[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="marl-verl", description="Train teams of LLM agents with multi-agent reinforcement learning, on unmodified verl."
    )
    parser.add_argument("--version", action="version", version=f"marl-verl {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if word in COMMANDS), None)
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        if name == chosen:  # the other commands' arguments need not be known
            importlib.import_module(f"marl_verl.cli.{name}").add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
