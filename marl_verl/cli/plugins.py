"""`marl-verl plugins [--json]`: list plugins, the names that they register, and the disabled ones."""

import argparse
import json
from typing import Any

from marl_verl import plugins
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.plugins import KINDS
from marl_verl.process.terminal import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the plugins, the names that they register, and those that MARL_VERL_PLUGINS excludes."
    add_plugin_argument(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per plugin")


def run(args: argparse.Namespace) -> int:
    plugins.use_files(plugins.read_files(args.plugin))
    records = plugins.load().describe()
    show(json.dumps(records, indent=2) if args.json else "\n\n".join(text(record) for record in records))
    return 0


def text(record: dict[str, Any]) -> str:
    """One plugin as a paragraph: its source on the first line, then one line of names per kind."""
    state = f"   broken: {record['error']}" if record["error"] else ""
    state = state if record["enabled"] else "   disabled: not in MARL_VERL_PLUGINS"
    lines = [f"{record['plugin']}   {record['distribution']} {record['version']}   {record['target']}{state}"]
    observers = [hook for hook in record["hooks"] if hook != "marl_register"]
    rows = {kind: ", ".join(record["names"][kind]) for kind in KINDS if kind in record["names"]}
    if observers:
        rows["observes"] = ", ".join(hook.removeprefix("marl_") for hook in observers)
    width = max(map(len, [*KINDS, "observes"]))
    return "\n".join(lines + [f"  {label:<{width}}  {names}" for label, names in rows.items()])
