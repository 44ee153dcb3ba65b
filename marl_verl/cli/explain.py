"""`marl-verl explain RUN` and `marl-verl explain FILE`: show how each advantage was computed."""

import argparse
import json
import sys

from marl_verl.api import explain
from marl_verl.cli.arguments import add_file_arguments, add_plugin_argument
from marl_verl.run.terminal import show

EXAMPLES = """
FILE is JSON, optionally gzipped, with the keys algorithm, options and rows (docs/explain.md).

  marl-verl explain rows.json                          every row: reward, return, baseline, scale, advantage, group
  marl-verl explain rows.json --row q0_1_0             one row's derivation, with the rows of its group
  marl-verl explain runs/inventory-1 --step 12         the advantages of training step 12
  marl-verl explain runs/inventory-1 --json            the latest stored step, as JSON
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show how the advantage of each row of a file or a stored training step was computed."
    add_plugin_argument(parser)
    add_file_arguments(parser, "a file with rows")
    parser.add_argument("--row", metavar="KEY", help="only this row: KEY is {uid}_{session}_{index}")
    parser.add_argument("--json", action="store_true", help="print all rows as a JSON list, one record per row")


def run(options: argparse.Namespace) -> int:
    rows = explain(options.source, step=options.step, plugins=options.plugin)
    if options.json:
        show("[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in rows) + "\n]")
    else:
        show(rows.text(options.row))
    if rows.difference is not None:
        print(f"marl-verl: {rows.difference}", file=sys.stderr)
    return 0
