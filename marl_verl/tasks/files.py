"""Tasks from and to files: JSON lines or parquet with `id`, `prompt` and `data`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from marl_verl.errors import MarlError, nearest
from marl_verl.tasks.base import Task


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """One JSON line a task."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) for task in tasks]
    path.write_text("\n".join(lines) + "\n")


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a `.jsonl`, `.json` or `.parquet` file.

    Raises:
        MarlError: no such file, empty, another ending, a line that is not JSON, a row without `id` or `prompt`, an id twice.
    """
    if not path.is_file():
        near = [str(other) for other in path.parent.glob("*")] if path.parent.is_dir() else []
        raise MarlError(f"no task file '{path}': {nearest(str(path), near)}")
    tasks, seen = [], set()
    for number, row in _rows(path):
        task = _task(row, path, number)
        if task.id in seen:
            raise MarlError(f"task file '{path}', row {number}: id '{task.id}' stands there twice")
        seen.add(task.id)
        tasks.append(task)
    if not tasks:
        raise MarlError(f"task file '{path}' is empty")
    return tasks


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    if path.suffix == ".parquet":
        import pyarrow
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
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise MarlError(f"task file '{path}' is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise MarlError(f"task file '{path}', line {number} is not JSON: {error}") from error


def _task(row: Any, path: Path, number: int) -> Task:
    if not isinstance(row, dict):
        raise MarlError(f"task file '{path}', row {number} must be an object with id and prompt, got {row!r:.60}")
    for name in ("id", "prompt"):
        if not isinstance(row.get(name), str):
            near = nearest(name, row) if row else "the row is empty"
            raise MarlError(f"task file '{path}', row {number} has no text '{name}': {near}")
    data = row.get("data") or {}
    data = json.loads(data) if isinstance(data, str) else data
    if not isinstance(data, dict):
        raise MarlError(f"task file '{path}', row {number}: 'data' must be an object, got {data!r:.60}")
    return Task(row["id"], row["prompt"], data)
