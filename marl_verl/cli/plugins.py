"""`marl-verl plugins [--json]`: which distributions supply which names, and what is switched off."""

import argparse
import json
from typing import Any

from marl_verl import plugins
from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.plugins import KINDS
from marl_verl.process.terminal import show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "List the plugins, what they register, and what MARL_VERL_PLUGINS leaves out."
    add_plugin_argument(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per plugin")


def run(args: argparse.Namespace) -> int:
    plugins.use_files(plugins.read_files(args.plugin))
    records = plugins.load().describe()
    show(json.dumps(records, indent=2) if args.json else "\n\n".join(text(record) for record in records))
    return 0


def text(record: dict[str, Any]) -> str:
    """One plugin as a paragraph: who it is, then one line per kind with its names."""
    state = f"   broken: {record['error']}" if record["error"] else ""
    state = state if record["enabled"] else "   disabled: not in MARL_VERL_PLUGINS"
    lines = [f"{record['plugin']}   {record['distribution']} {record['version']}   {record['target']}{state}"]
    observers = [hook for hook in record["hooks"] if hook != "marl_register"]
    rows = {kind: ", ".join(record["names"][kind]) for kind in KINDS if kind in record["names"]}
    if observers:
        rows["observes"] = ", ".join(hook.removeprefix("marl_") for hook in observers)
    width = max(map(len, [*KINDS, "observes"]))
    return "\n".join(lines + [f"  {label:<{width}}  {names}" for label, names in rows.items()])
