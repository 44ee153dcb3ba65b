"""Convert two public formats of problems with tests to tasks of `code-with-tests`.

    python -m marl_verl_mars2.convert livecodebench test5.jsonl data/code/train.jsonl
    python -m marl_verl_mars2.convert apps train.jsonl data/code/train.jsonl --public 2

livecodebench   question_id, question_content, public_test_cases and private_test_cases: each a JSON list of
                {"input", "output", "testtype"}; the private ones may be packed (base64 of zlib of a pickled JSON text)
apps            problem_id (or id), question, input_output: JSON of {"inputs": [...], "outputs": [...]}; also TACO's.
                All its tests are alike: the first `public` become public, the rest private

Problems without standard input and output (a function to call: "fn_name", or testtype "functional") or without private
tests are skipped, and counted. Rows are JSON lines, a JSON list or parquet.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import io
import json
import pickle
import sys
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_verl import MarlError, Task
from marl_verl.errors import nearest
from marl_verl.tasks import read_rows, write_tasks

NEEDED = {"input", "output"}
Tests = list[dict[str, str]]


def livecodebench(row: Mapping[str, Any]) -> Task | None:
    """A row of LiveCodeBench as a task; None if it does not use standard input.

    Raises:
        MarlError: a column is missing, or holds no tests.
    """
    name = str(_column(row, "question_id"))
    tests: dict[str, Tests] = {}
    for which in ("public", "private"):
        found = _tests(_column(row, f"{which}_test_cases"), name)
        if any(test.get("testtype", "stdin") != "stdin" for test in found):
            return None
        tests[which] = [{"input": test["input"], "output": test["output"]} for test in found]
    return Task(name, str(_column(row, "question_content")), dict(tests)) if tests["private"] else None


def apps(row: Mapping[str, Any], public: int = 2) -> Task | None:
    """A row of APPS or TACO as a task; None if it asks for a function, or has no private tests.

    Raises:
        MarlError: a column is missing, or holds no tests.
    """
    name = str(row["id"] if "id" in row else _column(row, "problem_id"))
    packed = _column(row, "input_output") or "{}"
    found = _json(packed, name) if isinstance(packed, str) else packed
    if not isinstance(found, Mapping) or found.get("fn_name"):
        return None
    inputs, outputs = found.get("inputs", []), found.get("outputs", [])
    if len(inputs) != len(outputs):
        raise MarlError(f"problem '{name}' has {len(inputs)} inputs and {len(outputs)} outputs")
    tests = [{"input": _text(one), "output": _text(two)} for one, two in zip(inputs, outputs, strict=True)]
    if len(tests) <= public:
        return None
    return Task(name, str(_column(row, "question")), {"public": tests[:public], "private": tests[public:]})


FORMATS = {"livecodebench": livecodebench, "apps": apps}


def _tests(packed: Any, name: str) -> list[dict[str, Any]]:
    """The list of tests in a column of LiveCodeBench, packed or not."""
    text = packed
    if isinstance(packed, str) and not packed.lstrip().startswith("["):
        try:
            text = _Text(io.BytesIO(zlib.decompress(base64.b64decode(packed, validate=True)))).load()
        except (binascii.Error, zlib.error, pickle.UnpicklingError, EOFError) as error:
            raise MarlError(f"problem '{name}' has packed tests that cannot be read: {error}") from error
    found = _json(text, name) if isinstance(text, str) else text
    whole = isinstance(found, list) and all(
        isinstance(test, dict) and {"input", "output"} <= set(test) for test in found
    )
    if not whole:
        raise MarlError(f"problem '{name}' has tests that are no list of inputs and outputs: {found!r:.60}")
    return list(found)


class _Text(pickle.Unpickler):
    """Reads pickled texts, numbers, lists and dicts. References to functions or classes are rejected."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"they name {module}.{name}, and should be a text")


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise MarlError(f"problem '{name}' has tests that are not JSON: {error}") from error


def _text(lines: Any) -> str:
    """TACO gives some inputs and outputs as lists of lines."""
    return lines if isinstance(lines, str) else "\n".join(str(line) for line in lines)


def _column(row: Mapping[str, Any], name: str) -> Any:
    if name not in row:
        raise MarlError(f"a row has no column '{name}': {nearest(name, map(str, row))}")
    return row[name]


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert a file. Exit code 2 and an error message if that fails; then nothing is written."""
    parser = argparse.ArgumentParser(prog="python -m marl_verl_mars2.convert", description="Problems, as tasks.")
    parser.add_argument("format", choices=FORMATS)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--public", type=int, default=2, help="apps: tests that may be shown (default 2)")
    given = parser.parse_args(arguments)
    try:
        made = [
            apps(row, given.public) if given.format == "apps" else livecodebench(row)
            for _, row in read_rows(given.source)
        ]
        tasks = [task for task in made if task is not None]
        if not tasks:
            raise MarlError(f"'{given.source}' has no problem with private tests on standard input: nothing is written")
        write_tasks(tasks, given.target)
    except MarlError as error:
        print(f"convert: {error}", file=sys.stderr)
        return 2
    print(f"{given.target}: {len(tasks)} tasks, {len(made) - len(tasks)} rows left out")
    return 0


if __name__ == "__main__":
    sys.exit(main())
