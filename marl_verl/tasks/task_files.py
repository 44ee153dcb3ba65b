"""Read and write task files: JSON lines, a JSON list or parquet with `id`, `prompt` and `data`."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from marl_verl.errors import MarlError, missing, user_error
from marl_verl.tasks.task import SET, Task


def write_tasks(tasks: Iterable[Task], path: Path) -> None:
    """Write one JSON line per task. MarlError, and no file, if a task's data is not JSON-serialisable."""
    lines = []
    for task in tasks:
        with user_error(f"the data of task '{task.id}' cannot be written as JSON", TypeError, ValueError):
            lines.append(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data}) + "\n")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file of `read_rows`; what a workflow or score needs must be in 'data'. MarlError without any."""
    tasks = [_task(row, f"task file '{path}', row {number}") for number, row in read_rows(path, "task file")]
    if not tasks:
        raise MarlError(f"task file '{path}' is empty")
    return tasks


def read_rows(path: Path, label: str = "file") -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, row) of a `.parquet` file, or of JSON lines or a JSON list in any other file. MarlError, beginning with
    `label`: missing file, not JSON or parquet, or a row that is not an object."""
    if not path.is_file():
        raise missing(label, path, path.parent.glob("*"))
    yield from enumerate(_parquet(path, label) if path.suffix == ".parquet" else _json(path, label), start=1)


def _parquet(path: Path, label: str) -> Iterator[Any]:
    import pyarrow.parquet

    problem = f"{label} '{path}' is not parquet"
    with user_error(problem, pyarrow.ArrowException, OSError), pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=4096):  # a set of millions of rows is not in memory as a whole
            yield from batch.to_pylist()


def _json(path: Path, label: str) -> Iterator[Any]:
    number = 0
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            yield from map(dict, json.loads(text))
            return
        for line in text.split("\n"):  # splitlines() also splits at U+2028 inside a text
            number += 1
            if line.strip():
                yield dict(json.loads(line))
    except (TypeError, ValueError, RecursionError) as error:  # not UTF-8, or not JSON
        place = f", line {number} is not a JSON object" if number else " is not a JSON list, or not UTF-8 text"
        raise MarlError(f"{label} '{path}'{place}: {error}") from error


def _task(row: dict[str, Any], where: str) -> Task:
    data = row.get("data")
    with user_error(where, ValueError, RecursionError, msgspec.ValidationError):
        data = json.loads(data) if isinstance(data, str) else data or {}  # parquet often holds JSON as text
        return msgspec.convert({**row, "data": data}, Task)


ROW = "reward_model"
"""What only rows of verl's form have."""
ANSWERS = (ROW, "answer", "answers", "solution", "aliases")
BESIDE = ("extra_info", "data_source", SET)  # numbers of rows, and names of files


def trained(training: Sequence[Task], test: Iterable[Task], files: bool) -> list[Task]:
    """The test tasks that are training tasks: in rows of files those with the same question, apart from white space; of
    generated tasks, and for a question that several training tasks ask, those with the same id."""
    ids = {task.id for task in training}
    if not (files or any(ROW in task.data for task in training)):
        return [task for task in test if task.id in ids]
    times = Counter(map(_question, training))
    asked = ((task, times[_question(task)]) for task in test)
    return [task for task, number in asked if number == 1 or (number and task.id in ids)]


def _question(task: Task) -> str:
    """What is asked: the prompt, and the data but the answer."""
    data = {name: value for name, value in task.data.items() if name not in (*BESIDE, *ANSWERS)}
    return json.dumps([task.prompt.split(), data], sort_keys=True)
