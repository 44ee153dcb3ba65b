"""`marl-verl plugins [NAME]`: list plugins and the names that they register, or show the parts of one name."""

import argparse
import dataclasses
import inspect
import json
import sys
from typing import Any

from marl_verl import plugins
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.errors import format_error, unknown
from marl_verl.options import config_of
from marl_verl.plugins import one_file
from marl_verl.plugins.loading import Plugins
from marl_verl.plugins.registry import KINDS, Entry
from marl_verl.run.terminal import harmless, indented, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List plugins and the names that they register. With NAME: the parts of that name in detail."
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of a part or plugin, such as grpo or sharp")
    add_plugin_argument(parser)


def run(options: argparse.Namespace) -> int:
    plugins.use_files(one_file.read_files(options.plugin))
    known, name = plugins.discover(strict=False), options.name
    texts = [plugin_text(record) for record in known.describe() if name in (None, record["plugin"])]
    if name is not None:
        texts += [part_text(known, entry) for kind in KINDS for entry in known.find(kind, name)]
    if not texts:
        valid = {part for kind in KINDS for part in known.names(kind)}
        raise known.explained(unknown("part or plugin", name, valid | {source.plugin for source in known.loaded}))
    show(harmless("\n\n".join(texts)))
    return 0


def plugin_text(record: dict[str, Any]) -> str:
    """A plugin: its source on the first line, then its names of each kind."""
    state = f"   broken: {record['error']}" if record["error"] else ""
    lines = [f"{record['plugin']}   {record['distribution']} {record['version']}   {record['target']}{state}"]
    lines += [f"  {kind:<10}  {', '.join(names)}" for kind, names in record["names"].items()]
    observers = [hook.removeprefix("marl_") for hook in record["hooks"] if hook != "marl_register"]
    return "\n".join([*lines, *([f"  observes    {', '.join(observers)}"] if observers else [])])


def part_text(known: Plugins, entry: Entry) -> str:
    """A part: its source on the first line, then its docstring and its options with their defaults."""
    source = entry.source
    lines = [f"{KINDS[entry.kind]} {entry.name}   {source.distribution} {source.version}   {entry.shown}"]
    try:
        target = known.get(entry.kind, f"{source.distribution}:{entry.name}")
    except Exception as error:  # noqa: BLE001  code of a plugin, which must not hide the other parts
        return "\n".join([*lines, f"  broken: {format_error(error)}"])
    module = sys.modules.get(str(entry.target).partition(":")[0])
    documented = target if inspect.isclass(target) or inspect.isroutine(target) else module
    lines += indented(inspect.getdoc(documented) or "", 2)
    if options := _options(target):
        lines += ["", *indented(f"options: {json.dumps(options, indent=2, default=str)}", 2)]
    return "\n".join(lines)


def _options(target: Any) -> dict[str, Any]:
    """Option -> its default, of a dataclass or an instance of one; parts are mappings with their own options."""
    fields = dataclasses.fields(target) if dataclasses.is_dataclass(target) else ()
    made = {field.name: field.default_factory() for field in fields if callable(field.default_factory)}
    names = [field.name for field in fields if field.init]
    return {name: config_of(getattr(target, name, made.get(name, "(no default)"))) for name in names}
