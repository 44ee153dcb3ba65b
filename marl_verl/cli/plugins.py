"""`marl-verl plugins [NAME] [--json]`: list plugins and the names that they register, or show the parts of one name."""

import argparse
import json
from typing import Any

from marl_verl import plugins
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.errors import unknown
from marl_verl.inspect.texts import aligned, indented
from marl_verl.plugins import one_file
from marl_verl.plugins.registry import KINDS
from marl_verl.run.terminal import harmless, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the plugins and the names that they register. With NAME: the parts of that name in detail."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a part or plugin, such as grpo or sharp")
    add_plugin_argument(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per plugin or part")


def run(args: argparse.Namespace) -> int:
    plugins.use_files(one_file.read_files(args.plugin))
    known = plugins.discover(strict=False)
    records = [record for record in known.describe() if args.name in (None, record["plugin"])]
    parts = []
    if args.name is not None:
        from marl_verl.plugins.details import details  # here: the list does not import the parts

        parts = details(known, args.name)
        if not records and not parts:
            valid = {name for kind in KINDS for name in known.names(kind)}
            raise unknown("part or plugin", args.name, valid | {source.plugin for source in known.loaded})
    if args.json:
        show(json.dumps(records if args.name is None else parts, indent=2, default=str))
    else:
        show("\n\n".join([*map(text, records), *map(part_text, parts)]))
    return 0


def text(record: dict[str, Any]) -> str:
    """One plugin as a paragraph: its source on the first line, then one line of names per kind."""
    state = f"   broken: {record['error']}" if record["error"] else ""
    lines = [f"{record['plugin']}   {record['distribution']} {record['version']}   {record['target']}{state}"]
    observers = [hook for hook in record["hooks"] if hook != "marl_register"]
    rows = {kind: ", ".join(record["names"][kind]) for kind in KINDS if kind in record["names"]}
    if observers:
        rows["observes"] = ", ".join(hook.removeprefix("marl_") for hook in observers)
    width = max(map(len, [*KINDS, "observes"]))
    return harmless("\n".join(lines + [f"  {label:<{width}}  {names}" for label, names in rows.items()]))


def part_text(record: dict[str, Any]) -> str:
    """A part: its source on the first line, then its docstring and its options."""
    origin = f"{record['distribution']} {record['version']}   {record['target']}"
    lines = [f"{record['kind']} {record['name']}   {origin}"]
    if record["error"]:
        return harmless("\n".join([*lines, f"  broken: {record['error']}"]))
    if record["doc"]:
        lines += indented(record["doc"], 2)
    rows = [[name, _shown(record["default"]), record["type"]] for name, record in record["options"].items()]
    if rows:
        title = ["option", "default", "type"]
        lines += ["", f"  options ({record['section']})", *(f"    {line}" for line in aligned([title, *rows]))]
    return harmless("\n".join(lines))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
