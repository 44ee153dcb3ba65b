"""`marl-verl explain RUN` and `marl-verl explain FILE`: show how each advantage was computed."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_verl.cli.arguments import add_plugin_argument
from marl_verl.run.reading import read_rows, run_of
from marl_verl.run.terminal import show
from marl_verl_inspect.files import add_file_arguments, read_stored, stored_file, use_plugin_files

if TYPE_CHECKING:
    from marl_verl_inspect.explained import ExplainedRows

EXAMPLES = """
FILE is JSON, optionally gzipped, with the keys algorithm, options and rows (docs/explain.md).

  marl-verl explain rows.json                          every row: reward, return, baseline, scale, advantage, group
  marl-verl explain rows.json --row q0_1_0             one row's derivation, with the rows of its group
  marl-verl explain runs/inventory-1 --step 12         the advantages of training step 12
  marl-verl explain runs/inventory-1 --json            the latest stored step, as JSON
"""


def explain(
    source: Mapping[str, Any] | str | os.PathLike[str],
    *,
    step: int | None = None,
    plugins: Sequence[str | os.PathLike[str]] = (),
) -> "ExplainedRows":
    """Explain how the advantage of each row was computed, as `marl-verl explain` does.

    Args:
        source: a document {"algorithm": ..., "options": ..., "rows": [...]}, a file with one, or a run directory.
        step: of the run; default: the latest stored one.
        plugins: plugin files in addition to the run's copies.

    Returns:
        A list with a record per row: reward, return, baseline, scale, advantage, group and more. Its `text()` is the
        table that the command prints, and `text(row="q0_1_0")` the derivation of one row.

    Raises:
        MarlError: an invalid document, or a step that the run has not stored.
    """
    from marl_verl_inspect.explained import ExplainedRows  # here: --help needs no NumPy

    files = [Path(file) for file in plugins]
    if isinstance(source, Mapping):
        use_plugin_files(None, files)
        return ExplainedRows(source)
    use_plugin_files(run_of(Path(source)), files)
    file = stored_file(Path(source), "rows", step)
    return ExplainedRows(read_rows(file), f"'{file}'")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plugin_argument(parser)
    add_file_arguments(parser, "a file with rows")
    parser.add_argument("--row", metavar="KEY", help="only this row: KEY is {uid}_{session}_{index}")
    parser.add_argument("--json", action="store_true", help="print the rows as a JSON list, one record per row")


def run(options: argparse.Namespace) -> int:
    source, step = options.source, options.step
    if options.row is not None and source.is_dir():
        use_plugin_files(source, options.plugin)
        (source, _), step = read_stored(source, "rows", options.row, step), None
    rows = explain(source, step=step, plugins=options.plugin)
    if options.json:
        records = rows if options.row is None else [rows[rows.place(options.row)]]
        show("[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in records) + "\n]")
    else:
        show(rows.text(options.row))
    if rows.difference is not None:
        print(f"marl-verl: {rows.difference}", file=sys.stderr)
    return 0
