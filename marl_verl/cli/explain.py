"""`marl-verl explain FILE` and `marl-verl explain --run DIR`: how each row came by its advantage."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from typing import Any

from marl_verl import plugins
from marl_verl.cli import explain_text as text
from marl_verl.cli.files import add_file_arguments, chosen, unpacked
from marl_verl.cli.output import show
from marl_verl.errors import MarlError
from marl_verl.explain import Explanation, Games, derive
from marl_verl.journals.read import holds_episodes
from marl_verl.trainer.run_dir import RunDir

EXAMPLES = """
FILE is JSON, or JSON packed with gzip, with the keys algorithm, options and rows; others are ignored:

  {"algorithm": "at-grpo", "options": {}, "rows": [
    {"uid": "q0", "session": 0, "index": 0, "turn": 0, "agent": "coder", "rewards": {"team": 1.0}, "length": 5},
    {"uid": "q0", "session": 1, "index": 0, "turn": 0, "agent": "coder", "rewards": {"team": 0.0}, "length": 6}]}

  marl-verl explain rows.json                          every row: reward, return, baseline, scale, advantage, group
  marl-verl explain rows.json --row q0_1_0             one row's derivation, beside the rows of its group
  marl-verl explain --run runs/inventory-1 --step 12   what training did in step 12
  marl-verl explain --run runs/inventory-1 --json      the newest stored step, as JSON
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show how each row came by its advantage: from a file, or from what a training step stored."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add_file_arguments(parser, "what to explain; - is standard input")
    parser.add_argument("--row", metavar="KEY", help="only this row: KEY is {uid}_{session}_{index}")
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per row")


def run(options: argparse.Namespace) -> int:
    """Print to standard output. MarlError (exit code 2) for whatever is wrong, before anything is printed."""
    plugins.load()  # what is wrong with a plugin is not the file's mistake
    source, content = chosen(options, RunDir.stored_rows, "rows.json", "train it with marl.run.keep_rows=1")
    document = parse(content, source)
    try:
        found = derive(document)
        said = _records(found, options.row) if options.json else _text(found, options.row)
    except MarlError as error:
        raise MarlError(f"{source}: {error}") from error
    difference = None if options.folder is None else _difference(document, found, source)
    if options.folder is not None and not options.json:
        said = f"{source}\n{said}"
    show(said)
    if difference is not None:
        print(f"marl-verl: {difference}", file=sys.stderr)
    return 0


def parse(content: bytes, source: str) -> Any:
    """The JSON document in a file, which may be packed with gzip. MarlError if it is neither."""
    content = unpacked(content, source)
    if holds_episodes(content):
        raise MarlError(f"{source} holds episodes, which `marl-verl replay` shows; rows are in rows/ of a run")
    try:
        return json.loads(content, parse_int=lambda digits: _whole(digits, source))
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} is not JSON: {error}") from error


def _whole(digits: str, source: str) -> int:
    if len(digits) > 18:
        raise MarlError(f"{source} has a whole number of {len(digits)} digits: {digits[:18]}...")
    return int(digits)


def _records(found: Explanation | Games, key: str | None) -> str:
    """A JSON list with a record a line."""
    records = found.records()
    if key is not None:
        records = [records[_with_rows(found).row(key)]]
    return "[\n" + ",\n".join(json.dumps(record, allow_nan=False) for record in records) + "\n]"


def _text(found: Explanation | Games, key: str | None) -> str:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if key is not None:
        return text.row_text(_with_rows(found), key, width)
    return text.games_text(found, width) if isinstance(found, Games) else text.table_text(found, width)


def _with_rows(found: Explanation | Games) -> Explanation:
    if isinstance(found, Games):
        raise MarlError("--row names the row of an agent, and here rows are games: leave it out")
    return found


def _difference(document: dict[str, Any], found: Explanation | Games, source: str) -> str | None:
    """How the advantages differ from those that training used; None where they are the same, to the bit."""
    stored = document.get("advantage")
    if isinstance(found, Games) or not isinstance(stored, list) or len(stored) != len(found.table):
        raise MarlError(f"{source} is damaged: it lacks the advantage of each row, as training used it")
    now = found.result.advantage.tolist()
    rows = [row for row, (then, value) in enumerate(zip(stored, now, strict=True)) if then != value]
    if not rows:
        return None
    first = rows[0]
    return (
        f"{source}: {len(rows)} of {len(now)} advantages are not what training used, e.g. row "
        f"'{found.table.key(first)}' had {stored[first]} and gets {now[first]} here: a plugin or a version has changed "
        "(plugins.json in the run has those of training)"
    )
