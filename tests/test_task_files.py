"""Task files: round trip, and errors that name the row of a malformed file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task
from marl_verl.tasks.task_files import read_tasks, write_tasks

TASKS = [Task("a", "1 + 1?", {"answer": 2}), Task("b", "two\nlines\u2028three \u00e9", {})]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tasks.jsonl"
    write_tasks(TASKS, path)
    assert read_tasks(path) == TASKS


def test_a_line_separator_inside_a_text_is_no_new_row(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [{"id": task.id, "prompt": task.prompt, "data": task.data} for task in TASKS]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert read_tasks(path) == TASKS


def test_parquet_with_data_as_columns_or_as_json(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    as_text = [{"id": "a", "prompt": "p", "data": json.dumps({"answer": 2})}]
    as_columns = [{"id": "a", "prompt": "p", "data": {"answer": 2}}]
    for name, rows in (("text", as_text), ("columns", as_columns)):
        path = tmp_path / f"{name}.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        assert read_tasks(path) == [Task("a", "p", {"answer": 2})]


def test_data_that_json_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(MarlError, match="the data of task 'b' cannot be written as JSON"):
        write_tasks([TASKS[0], Task("b", "p", {"x": {1, 2}})], path)
    assert not path.exists()


GOOD: dict[str, Any] = {"id": "a", "prompt": "p", "data": {}}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", "", "is empty"),
        ("t.jsonl", "\n\n", "is empty"),
        ("t.jsonl", "{", "line 1 is not a JSON object"),
        ("t.jsonl", json.dumps(GOOD) + "\nnot json\n", "line 2 is not a JSON object"),
        ("t.jsonl", "[1, 2]", "row 1 must be an object with id and prompt"),
        ("t.json", json.dumps([GOOD], indent=1), "line 1 is not a JSON object"),
        ("t.jsonl", '{"prompt": "p"}', "row 1 has no text 'id': valid: prompt"),
        ("t.jsonl", '{"id": "a", "promt": "p"}', "row 1 has no text 'prompt': did you mean 'promt'?"),
        ("t.jsonl", '{"id": 3, "prompt": "p"}', "row 1 has no text 'id': got 3"),
        ("t.jsonl", '{"id": "a", "prompt": "p", "data": [1]}', "row 1: 'data' must be an object, got [1]"),
        ("t.jsonl", '{"id": "a", "prompt": "p", "data": "{"}', "row 1: 'data' is text that is not JSON"),
        ("t.jsonl", json.dumps(GOOD) + "\n" + json.dumps(GOOD), "row 2: id 'a' is already the id of row 1"),
        ("t.csv", "id,prompt", "must end in .jsonl or .parquet"),
        ("t.parquet", "no parquet", "is not parquet"),
        ("t.jsonl", b"\xff\xfe\x00", "is not UTF-8 text"),
    ],
)
def test_a_malformed_file_raises_with_its_row(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(MarlError) as error:
        read_tasks(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_offers_the_nearest(tmp_path: Path) -> None:
    write_tasks(TASKS, tmp_path / "train.jsonl")
    with pytest.raises(MarlError, match=r"no task file '.*trian.jsonl': did you mean '.*train.jsonl'\?"):
        read_tasks(tmp_path / "trian.jsonl")
    with pytest.raises(MarlError, match=r"no task file '/nowhere/at/all.jsonl'\. Check the path\.$"):
        read_tasks(Path("/nowhere/at/all.jsonl"))
