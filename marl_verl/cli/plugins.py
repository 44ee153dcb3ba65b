"""`marl-verl plugins [NAME]`: list plugins and the names that they register, or show the parts of one name."""

import argparse
import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

from marl_verl import plugins
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.errors import format_error, unknown
from marl_verl.inspect.texts import indented, table
from marl_verl.options import Part, config_of, in_words
from marl_verl.plugins import one_file
from marl_verl.plugins.lookup import Plugins
from marl_verl.plugins.registry import KINDS, Entry
from marl_verl.run.terminal import harmless, show

SECTIONS = {"tasks": "marl.task.options", "workflows": "marl.workflow.options", "samplers": "marl.sampler.options"}
WITHOUT = ("rewards", "losses", "scripts")  # kinds of parts without options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the plugins and the names that they register. With NAME: the parts of that name in detail."
    )
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
        raise unknown("part or plugin", name, valid | {source.plugin for source in known.loaded})
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
    """A part: its source on the first line, then its docstring and its options."""
    source = entry.source
    lines = [f"{KINDS[entry.kind]} {entry.name}   {source.distribution} {source.version}   {entry.shown}"]
    try:
        target = known.get(entry.kind, f"{source.distribution}:{entry.name}")
        has_options = entry.kind not in WITHOUT and dataclasses.is_dataclass(target)
        options = [*_options(target, "")] if has_options else []
    except Exception as error:  # noqa: BLE001  code of a plugin, which must not hide the other parts
        return "\n".join([*lines, f"  broken: {format_error(error)}"])
    if doc := _doc(target, entry):
        lines += indented(doc, 2)
    if options:
        lines += ["", f"  options ({SECTIONS.get(entry.kind, 'marl.algorithm.options')})"]
        lines += [f"    {line}" for line in table([("option", "default", "type"), *options])]
    return "\n".join(lines)


def _doc(target: Any, entry: Entry) -> str:
    """The docstring of a class or function; of an object, that of the module that defines it."""
    if inspect.isclass(target):
        doc = vars(target).get("__doc__") or ""
        return "" if doc.startswith(f"{target.__name__}(") else inspect.cleandoc(doc)  # written by `dataclass`
    if inspect.isroutine(target):
        return inspect.getdoc(target) or ""
    place = entry.target if isinstance(entry.target, str) else entry.source.target
    return inspect.getdoc(sys.modules.get(place.partition(":")[0])) or ""


def _options(part: Any, prefix: str) -> Iterator[tuple[str, str, str]]:
    """(name in a config, default, type in words) of the options of a class or an object, and of its nested parts."""
    hints = get_type_hints(part if inspect.isclass(part) else type(part), include_extras=True)
    for field in dataclasses.fields(part):
        if not field.init:
            continue
        value = _default(field) if inspect.isclass(part) else getattr(part, field.name)
        shown = value.name if isinstance(value, Part) else config_of(value)
        text = shown if isinstance(shown, str) and shown else json.dumps(shown, default=str)
        yield prefix + field.name, text, in_words(hints[field.name])
        for nested in value if isinstance(value, tuple) else (value,):
            if isinstance(nested, Part):
                yield from _options(nested, f"{prefix}{field.name}.")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return "(required)" if field.default is dataclasses.MISSING else field.default
