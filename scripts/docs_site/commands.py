"""The reference of the command line, from its parsers."""

import argparse
import re
from typing import Any

from marl_verl.cli import main as program

MARKUP = str.maketrans({sign: f"&#{ord(sign)};" for sign in "\\|<>*_[]@#"})
"""Characters that mean something in Markdown -> their entities."""

TITLE = """# Commands

Every command and its options. `marl-verl COMMAND --help` prints the same; `--debug` adds the traceback of an error.
"""


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Command -> its parser, as `marl-verl COMMAND` makes it."""
    found = {}
    for name, text in {**program.COMMANDS, **program.registered()}.items():
        parser = argparse.ArgumentParser(prog=f"marl-verl {name}", description=text)
        module: Any = program.load_command(name)
        module.add_arguments(parser)
        parser.epilog = getattr(module, "EXAMPLES", None)
        found[name] = parser
    return found


def page() -> str:
    return "\n".join([TITLE, *(_section(name, parser) for name, parser in parsers().items())])


def _section(name: str, parser: argparse.ArgumentParser) -> str:
    usage = " ".join(parser.format_usage().removeprefix("usage: ").replace("[-h] ", "").split())
    actions = [each for each in parser._actions if not isinstance(each, argparse._HelpAction)]
    rows = [f"| `{_shown(each)}` | {cell(_help(each, parser))} |" for each in actions]
    table = "\n".join(["", "| argument | meaning |", "|---|---|", *rows, ""]) if rows else ""
    examples = f"\n```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else ""
    return f"## {name}\n\n{cell(parser.description or '')}\n\n```text\n{usage}\n```\n{table}{examples}"


def _shown(action: argparse.Action) -> str:
    values = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    values = " ".join(values) if isinstance(values, tuple) else values
    if not action.option_strings:
        return values
    return ", ".join(action.option_strings) + (f" {values}" if action.nargs != 0 else "")


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": parser.prog}


def cell(text: str) -> str:
    """A text in a cell of a table, where only `code` is markup; a page of docs/ becomes a link."""
    parts = re.split(r"(`[^`|]+`)", " ".join(text.split()))
    plain = "".join(part if part.startswith("`") else part.translate(MARKUP) for part in parts)
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", plain)


PAGES = {"commands.md": page}
