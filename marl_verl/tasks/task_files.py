"""Read and write task files: JSON lines, a JSON list or parquet with `id`, `prompt` and `data`, or rows of verl's form.

verl's rows have `prompt` as a list of one message, and `data_source`, `reward_model` and `extra_info`, which become
`data`. Such a row without `id` is named after its `extra_info` (split and index), or the file and its number.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, MarlWarning, missing, nearest
from marl_verl.tasks.columns import PARTS, advice, lost
from marl_verl.tasks.task import Task

VERL = ("data_source", "reward_model", "extra_info")  # columns of verl's data sets that scoring needs
USED = ("id", "prompt", "data", *VERL)


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write one JSON line per task. MarlError, and no file, if a task's data is not JSON-serialisable."""
    lines = []
    for task in tasks:
        try:
            lines.append(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) + "\n")
        except (TypeError, ValueError) as error:
            raise MarlError(f"the data of task '{task.id}' cannot be written as JSON: {error}") from error
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def read_tasks(path: Path, fields: bool = False) -> list[Task]:
    """Read the tasks of a file of `read_rows`. Columns that are not used are a MarlWarning, once.

    Args:
        fields: whether the task set has the option `fields`, which an error advises.

    Raises:
        MarlError: missing or empty file, another suffix, not JSON or parquet, a row without id or prompt, a duplicate
            id, a column that is not used and looks like a part of the question or the answer.
    """
    found: dict[str, tuple[int, Task]] = {}
    unused: dict[str, None] = {}
    for number, row in read_rows(path, "task file"):
        unused |= dict.fromkeys(name for name in row if name not in USED)
        task = _task(row, path, number)
        if (column := lost(row, USED, task, {})) is not None:
            what = f"task file '{path}', row {number}: column '{column[1]}' is not read, and looks like"
            here = f"Write it into '{'prompt' if column[0] == 'question' else 'data'}'."
            remedy = advice(row, {"prompt": "prompt"}, *column) if fields else here
            raise MarlError(f"{what} {PARTS[column[0]]}. {remedy}")
        first, _ = found.setdefault(task.id, (number, task))
        if first != number:
            raise MarlError(f"task file '{path}', row {number}: id '{task.id}' is already the id of row {first}")
    if not found:
        raise MarlError(f"task file '{path}' is empty")
    if unused:
        what = f"task file '{path}': columns {', '.join(map(str, unused))} are not used"
        warnings.warn(f"{what}. What a workflow or score needs must be in 'data'.", MarlWarning, stacklevel=2)
    return [task for _, task in found.values()]


def read_rows(path: Path, what: str = "file") -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a `.parquet` file, or of JSON lines or a JSON list in a `.jsonl` or `.json` file.

    Raises:
        MarlError: missing file, another suffix, not JSON or parquet, or a row that is not an object; the message begins
            with `what`.
    """
    if not path.is_file():
        raise missing(what, path, path.parent.glob("*"))
    for number, row in _parquet(path, what) if path.suffix == ".parquet" else _json(path, what):
        if not isinstance(row, dict):
            raise MarlError(f"{what} '{path}', row {number} must be an object, got {row!r:.60}")
        yield number, row


def _check_unicode(row: Any, place: str) -> None:
    """MarlError if a text has half of a surrogate pair, which JSON can write and no file can hold."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise MarlError(f"{place} has {half}, which is half of a character. Correct or remove it.") from error


def _parquet(path: Path, what: str) -> Iterator[tuple[int, Any]]:
    import pyarrow.parquet

    number = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=4096):  # a set of millions of rows is not in memory as a whole
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise MarlError(f"{what} '{path}' is not parquet: {str(error).splitlines()[0]}") from error


def _json(path: Path, what: str) -> Iterator[tuple[int, Any]]:
    if path.suffix not in (".jsonl", ".json"):
        raise MarlError(f"{what} '{path}' must end in .jsonl, .json or .parquet")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise MarlError(f"{what} '{path}' is not UTF-8 text: {error}") from error
    halves = re.search(r"\\u[dD][89a-fA-F]", text) is not None  # also whole pairs
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MarlError(f"{what} '{path}' is not a JSON list: {error}") from error
        for number, row in enumerate(rows, start=1):
            if halves:
                _check_unicode(row, f"{what} '{path}', row {number}")
            yield number, row
        return
    for number, line in enumerate(text.split("\n"), start=1):  # splitlines() would also split at U+2028 inside a text
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and deep nesting
                raise MarlError(f"{what} '{path}', line {number} is not a JSON object: {error}") from error
            if halves:
                _check_unicode(row, f"{what} '{path}', line {number}")
            yield number, row


def _task(row: dict[str, Any], path: Path, number: int) -> Task:
    row = _from_verl(row, path, number)
    for name in ("id", "prompt"):
        if not isinstance(row.get(name), str):
            found = f"got {row[name]!r:.60}" if name in row else nearest(name, map(str, row))
            raise MarlError(f"task file '{path}', row {number} has no text '{name}': {found}")
    data = {} if row.get("data") is None else row["data"]
    try:
        data = json.loads(data) if isinstance(data, str) else data  # parquet often holds JSON as text
    except (ValueError, RecursionError) as error:
        raise MarlError(f"task file '{path}', row {number}: 'data' is text that is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise MarlError(f"task file '{path}', row {number}: 'data' must be an object, got {data!r:.60}")
    return Task(row["id"], row["prompt"], {**{name: row[name] for name in VERL if name in row}, **data})


def _from_verl(row: dict[str, Any], path: Path, number: int) -> dict[str, Any]:
    """A row of verl's form with `id` and the text of its only message; other rows as they are."""
    prompt = row.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict):
        row = {**row, "prompt": prompt[0].get("content")}
    if "id" not in row and "reward_model" in row:
        info = row["extra_info"] if isinstance(row.get("extra_info"), dict) else {}
        place = (info.get("split", path.stem), info.get("index", number))
        row = {**row, "id": "-".join(map(str, (row.get("data_source") or "task", *place)))}
    return row
