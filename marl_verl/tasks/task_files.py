"""Read and write task files: JSON lines or parquet with `id`, `prompt` and `data`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, missing, nearest
from marl_verl.tasks.base import Task


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


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a `.jsonl`, `.json` (also JSON lines) or `.parquet` file.

    Raises:
        MarlError: missing or empty file, another suffix, not JSON or parquet, a row without id or prompt, a duplicate
            id.
    """
    if not path.is_file():
        raise missing("task file", path, path.parent.glob("*"))
    found: dict[str, tuple[int, Task]] = {}
    for number, row in _rows(path):
        task = _task(row, path, number)
        first, _ = found.setdefault(task.id, (number, task))
        if first != number:
            raise MarlError(f"task file '{path}', row {number}: id '{task.id}' is already the id of row {first}")
    if not found:
        raise MarlError(f"task file '{path}' is empty")
    return [task for _, task in found.values()]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if path.suffix == ".parquet":
        import pyarrow.parquet

        try:
            table = pyarrow.parquet.read_table(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise MarlError(f"task file '{path}' is not parquet: {str(error).splitlines()[0]}") from error
        yield from enumerate(table.to_pylist(), start=1)
        return
    if path.suffix not in (".jsonl", ".json"):
        raise MarlError(f"task file '{path}' must end in .jsonl or .parquet")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also split at U+2028 inside a text
    except UnicodeDecodeError as error:
        raise MarlError(f"task file '{path}' is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:  # also a number of thousands of digits, and deep nesting
                raise MarlError(f"task file '{path}', line {number} is not a JSON object: {error}") from error


def _task(row: Any, path: Path, number: int) -> Task:
    if not isinstance(row, dict):
        raise MarlError(f"task file '{path}', row {number} must be an object with id and prompt, got {row!r:.60}")
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
    return Task(row["id"], row["prompt"], data)
