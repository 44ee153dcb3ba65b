"""`marl-verl explain FILE` and `marl-verl explain --run DIR`: how each row came by its advantage."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import shutil
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_verl import plugins
from marl_verl.cli import explain_text as text
from marl_verl.errors import MarlError, missing
from marl_verl.explain import Explanation, Games, derive
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
    parser.add_argument("file", nargs="?", metavar="FILE", help="what to explain; - is standard input")
    parser.add_argument("--run", type=Path, dest="folder", metavar="DIR", help="a run directory, instead of a file")
    parser.add_argument("--step", type=int, metavar="N", help="which step of the run; left out: the newest stored one")
    parser.add_argument("--row", metavar="KEY", help="only this row: KEY is {uid}_{session}_{index}")
    parser.add_argument("--json", action="store_true", help="print a JSON list, one record per row")


def run(options: argparse.Namespace) -> int:
    """Print to standard output. MarlError (exit code 2) for whatever is wrong, before anything is printed."""
    plugins.load()  # what is wrong with a plugin is not the file's mistake
    try:
        source, content = _source(options)
    except OSError as error:
        raise MarlError(f"'{error.filename or options.file}' cannot be read: {error.strerror}") from error
    document = parse(content, source)
    try:
        found = derive(document)
        said = _records(found, options.row) if options.json else _text(found, options.row)
    except MarlError as error:
        raise MarlError(f"{source}: {error}") from error
    difference = None if options.folder is None else _difference(document, found, source)
    if options.folder is not None and not options.json:
        said = f"{source}\n{said}"
    _print(said)
    if difference is not None:
        print(f"marl-verl: {difference}", file=sys.stderr)
    return 0


def parse(content: bytes, source: str) -> Any:
    """The JSON document in a file, which may be packed with gzip. MarlError if it is neither."""
    if content.startswith(b"\x1f\x8b"):
        try:
            content = gzip.decompress(content)
        except (EOFError, OSError, zlib.error) as error:
            raise MarlError(f"{source} is damaged: it cannot be unpacked ({error})") from error
    try:
        return json.loads(content, parse_int=lambda digits: _whole(digits, source))
    except (ValueError, RecursionError) as error:
        raise MarlError(f"{source} is not JSON: {error}") from error


def _whole(digits: str, source: str) -> int:
    if len(digits) > 18:
        raise MarlError(f"{source} has a whole number of {len(digits)} digits: {digits[:18]}...")
    return int(digits)


def _source(options: argparse.Namespace) -> tuple[str, bytes]:
    """What to explain, as an error names it, and its bytes."""
    if options.folder is None:
        if options.step is not None:
            raise MarlError("--step is a step of a run: give --run DIR with it")
        if options.file is None:
            raise MarlError("which file? e.g. marl-verl explain rows.json, or marl-verl explain --run runs/NAME")
        if options.file == "-":
            return "standard input", sys.stdin.buffer.read()
        return f"'{options.file}'", _read(Path(options.file), "file")
    if options.file is not None:
        raise MarlError(f"'{options.file}' or --run '{options.folder}': explain one of them")
    folder: Path = options.folder
    if not folder.is_dir():
        raise missing("run in", folder, folder.parent.glob("*/"))
    stored = RunDir(folder).stored_rows()
    if not stored:
        raise MarlError(f"run '{folder}' has no stored steps: train it with marl.run.keep_rows=1")
    step = max(stored) if options.step is None else options.step
    if step not in stored:
        raise MarlError(f"run '{folder}' has not stored step {step}: it has {_listed(list(stored))}")
    return f"run '{folder}', step {step}", _read(stored[step], "step file")


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise missing(what, path, path.parent.glob("*")) from error
    except IsADirectoryError as error:
        raise MarlError(f"'{path}' is a folder: a run is explained with --run '{path}'") from error


def _listed(steps: Sequence[int]) -> str:
    """Steps in words, e.g. "1 to 40" or "10 to 200 (every 10), 203"."""
    runs: list[list[int]] = []  # each with one distance between neighbours
    for step in steps:
        if runs and (len(runs[-1]) < 2 or step - runs[-1][-1] == runs[-1][1] - runs[-1][0]):
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(_run_of_steps(run) for run in runs)


def _run_of_steps(run: Sequence[int]) -> str:
    if len(run) < 4:
        return ", ".join(map(str, run))
    every = run[1] - run[0]
    return f"{run[0]} to {run[-1]}" + (f" (every {every})" if every > 1 else "")


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


def _print(said: str) -> None:
    """To standard output; a reader that has enough, such as `head`, is no error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names are the user's, the terminal's encoding is not
    try:
        print(said, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains again when it ends
        if not isinstance(error, BrokenPipeError):
            raise MarlError(f"standard output cannot be written to: {error.strerror}") from error
