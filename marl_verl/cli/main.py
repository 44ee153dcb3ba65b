"""`marl-verl`: one module per command, imported only when the command is called, so that `--help` is fast.

Plugins add commands with `registry.command`.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from marl_verl.errors import MarlError, MarlWarning, RunError, with_line
from marl_verl.run.terminal import harmless, termination_as_interrupt
from marl_verl.version import __version__

COMMANDS = {
    "train": "train a team from a recipe",
    "recipes": "list the bundled recipes, or copy them",
    "plugins": "list plugins and the names that they register",
}

OF_FILE = {".yaml": ["train"], ".yml": ["train"], ".py": ["train", "RECIPE", "--plugin"]}  # the command that takes it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Exit code 0; 2 for a user error, 1 for a run that failed, 130 after Ctrl-C or SIGTERM."""
    program, arguments = arguments is None, list(sys.argv[1:] if arguments is None else arguments)

    def run() -> int:
        options, command = _parse(arguments)
        options.own_process = program  # this process ends with the command
        return int(command.run(options))

    with warnings.catch_warnings(), termination_as_interrupt():
        warnings.showwarning = _show_warning
        code = reported(run, "--debug" in arguments)
    if program:
        gc.freeze()  # at its end, Python would look for garbage in all that was loaded, for seconds
    return code


def reported(work: Callable[[], int], debug: bool = False) -> int:
    """Run a function and return its exit code. Prints an error on one line; with `debug` also traceback or log end."""
    try:
        return work()
    except RunError as error:
        if debug:
            print("\n".join(error.log.read_text(errors="replace").splitlines()[-60:]), file=sys.stderr)
        print("marl-verl:", error, file=sys.stderr)
        return 2 if error.mistake else 1
    except KeyboardInterrupt as error:
        if not error.args:  # otherwise it was printed already
            print("marl-verl: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001 - of a user, of the machine, or ours: one line
        with contextlib.suppress(OSError):  # standard error may be full
            if debug:
                traceback.print_exc()
            text = with_line(error) + ". --debug shows the traceback" * (not isinstance(error, MarlError))
            # one line, also for a plugin's multi-line error
            print("marl-verl:", harmless(" ".join(text.split())), file=sys.stderr)
        return 2 if isinstance(error, MarlError | OSError) else 1


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a MarlWarning in the form of an error, without the line of code that issued it."""
    if issubclass(category, MarlWarning):
        print("marl-verl: warning:", harmless(" ".join(str(message).split())), file=sys.stderr)
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def load_command(name: str) -> Any:
    """The module or object of a command, ours or a plugin's. MarlError for an unknown name, or a broken plugin."""
    if name in COMMANDS:
        return importlib.import_module(f"marl_verl.cli.{name.replace('-', '_')}")
    return _plugins().get("commands", name, COMMANDS)


def registered() -> dict[str, str]:
    """Command of a plugin -> its line of help."""
    return {entry.name: entry.settings["help"] for entry in _plugins().entries("commands")}


@functools.cache
def _plugins() -> Any:
    """All installed plugins, found once."""
    from marl_verl import plugins  # here: it takes time, and most commands are ours

    return plugins.discover(strict=False)


class _Parser(argparse.ArgumentParser):
    """Argument parser that raises errors as MarlError: one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        raise MarlError(f"{message}: see `{self.prog} --help`")


def _parse(arguments: list[str]) -> tuple[argparse.Namespace, Any]:
    """(the options, the module or object of the command)."""
    arguments = arguments or ["--help"]
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen is not None and (words := OF_FILE.get(Path(chosen).suffix)):
        rest = [word for word in arguments if word not in (chosen, *words)]
        raise MarlError(f"'{chosen}' is a file, not a command: {shlex.join(['marl-verl', *words, chosen, *rest])}")
    module: Any = None if chosen is None else load_command(chosen)
    description = "Train teams of LLM agents with multi-agent reinforcement learning, on unmodified verl."
    parser = _Parser(prog="marl-verl", description=description, allow_abbrev=False)
    debug: Any = {"action": "store_true", "help": "show the traceback of an error"}
    parser.add_argument("--version", action="version", version=f"marl-verl {__version__}")
    parser.add_argument("--debug", **debug)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in {**COMMANDS, **({} if chosen in COMMANDS else registered())}.items():
        command = commands.add_parser(name, help=help_text, description=help_text, allow_abbrev=False)
        command.add_argument("--debug", default=argparse.SUPPRESS, **debug)
        if name == chosen:  # only the chosen command's module is imported
            module.add_arguments(command)
            if hasattr(module, "EXAMPLES"):
                command.epilog, command.formatter_class = module.EXAMPLES, argparse.RawDescriptionHelpFormatter
    options, rest = parser.parse_known_args(arguments)
    # argparse leaves overrides after an option in `rest`: `train recipe.yaml --dry-run key=value`
    for word in rest:
        if word.startswith("-") or not hasattr(options, "overrides"):
            parser.error(f"unknown option '{word}'")
        options.overrides.append(word)
    first = str(vars(options).get("recipe") or vars(options).get("run"))
    if "=" in first and (late := [word for word in options.overrides if Path(word).exists()]):
        rest = [word for word in arguments if word not in (chosen, late[0])]
        raise MarlError(f"'{late[0]}' comes first: {shlex.join(['marl-verl', str(chosen), late[0], *rest])}")
    return options, module


if __name__ == "__main__":
    sys.exit(main())
