"""`marl-verl explain RUN` and `marl-verl explain FILE`: show how each advantage was computed."""

import argparse
import json
import shutil
import sys

from marl_verl.api import Run, explain
from marl_verl.cli.arguments import add_file_arguments, add_plugin_argument, file_content, set_folder
from marl_verl.inspect.explained import ExplainedRows
from marl_verl.inspect.run_files import read_step, run_of, use_plugin_files
from marl_verl.run.run_dir import unpacked
from marl_verl.run.terminal import show

EXAMPLES = """
FILE is JSON, optionally gzipped, with the keys algorithm, options and rows; other keys are ignored:

  {"algorithm": "at-grpo", "options": {}, "rows": [
    {"uid": "q0", "session": 0, "index": 0, "turn": 0, "agent": "coder", "rewards": {"team": 1.0}, "length": 5},
    {"uid": "q0", "session": 1, "index": 0, "turn": 0, "agent": "coder", "rewards": {"team": 0.0}, "length": 6}]}

  marl-verl explain rows.json                          every row: reward, return, baseline, scale, advantage, group
  marl-verl explain rows.json --row q0_1_0             one row's derivation, with the rows of its group
  marl-verl explain runs/inventory-1 --step 12   the advantages of training step 12
  marl-verl explain runs/inventory-1 --json      the latest stored step, as JSON
  marl-verl explain runs/inventory-1 --forest    the tokens that the rows of a task share
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show how the advantage of each row of a file or a stored training step was computed."
    add_plugin_argument(parser)
    add_file_arguments(parser, "rows to explain; - is standard input")
    parser.add_argument("--row", metavar="KEY", help="only this row: KEY is {uid}_{session}_{index}")
    text = "what the rows of a task share in an update (default: the first task of the step)"
    parser.add_argument("--forest", nargs="?", const="", metavar="UID", help=text)
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per row")


def run(options: argparse.Namespace) -> int:
    set_folder(options)
    if options.forest is not None:
        show(_forest(options))
        return 0
    if options.folder is not None:
        rows = explain(Run(options.folder), step=options.step, plugins=options.plugin)
    else:
        use_plugin_files(run_of(options.file), options.plugin)
        rows = ExplainedRows.parse(*file_content(options))
    if options.json:
        records = rows if options.row is None else [rows.row(options.row)]
        message = "[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in records) + "\n]"
    else:
        message = rows.text(options.row, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)
    if options.folder is not None and not options.json:
        message = f"{rows.source}\n{message}"
    show(message)
    if rows.difference is not None:
        print(f"marl-verl: {rows.difference}", file=sys.stderr)
    return 0


def _forest(options: argparse.Namespace) -> str:
    from marl_verl.inspect.episodes import EpisodeFile  # here: the rest does not need them and must start fast
    from marl_verl.inspect.forest_text import forest_text

    if options.folder is None:
        source, content = file_content(options)
    else:
        remedy = "train it with marl.run.keep_journals=1 marl.run.journal_tokens=true"
        source, content = read_step("explain", options.folder, "journals", remedy, step=options.step)
    return f"{source}\n{forest_text(EpisodeFile.parse(unpacked(content, source), source), options.forest or None)}"
