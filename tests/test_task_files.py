"""Task files: round trip, and errors that name the row of a malformed file."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from marl_verl.config.checks import load_tasks
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.tasks.base import Split, Task, TaskSet, read_tasks, trained, write_tasks

TASKS = [Task("a", "1 + 1?", {"answer": 2}), Task("b", "two\nlines\u2028three \u00e9", {})]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tasks.jsonl"
    write_tasks(TASKS, path)
    assert read_tasks(path) == TASKS


def test_a_size_limits_the_tasks_of_a_file(tmp_path: Path) -> None:
    write_tasks(TASKS, path := tmp_path / "tasks.jsonl")
    options = {"train_file": path, "train_size": None, "test_file": path, "test_size": 1}
    assert load_tasks(TaskSet(), options, "train", 0) == TASKS
    with pytest.warns(MarlWarning, match=r"of the 2 tasks of '.*' the first 1 are used: 'marl\.task\.test_size'"):
        assert load_tasks(TaskSet(), options, "test", 0) == TASKS[:1]


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: None, "must return a list of Task, it returned None"),
        (lambda: ["2 + 2"], "must return a list of Task, it returned '2"),
        (lambda: [].rows, r"fails for train tasks: AttributeError: .* \(test_task_files.py, line"),  # type: ignore[attr-defined]
    ],
)
def test_a_task_set_that_makes_no_tasks_is_named(made: Any, why: str) -> None:
    class Makes(TaskSet):
        def generate(self, split: Split, count: int, seed: int) -> list[Task]:
            tasks: list[Task] = made()
            return tasks

    with pytest.raises(MarlError, match=f"`Makes.generate` {why}"):
        load_tasks(Makes(), {"train_file": None, "train_size": 1}, "train", 0)


def test_a_line_separator_inside_a_text_is_no_new_row(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    rows = [{"id": task.id, "prompt": task.prompt, "data": task.data} for task in TASKS]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    assert read_tasks(path) == TASKS


def test_parquet_with_data_as_columns_or_as_json(tmp_path: Path) -> None:
    as_text = [{"id": "a", "prompt": "p", "data": json.dumps({"answer": 2})}]
    as_columns = [{"id": "a", "prompt": "p", "data": {"answer": 2}}]
    for name, rows in (("text", as_text), ("columns", as_columns)):
        path = tmp_path / f"{name}.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        assert read_tasks(path) == [Task("a", "p", {"answer": 2})]


def test_data_that_json_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(MarlError, match="the data of task 'b' cannot be written as JSON"):
        write_tasks([TASKS[0], Task("b", "p", {"x": {1, 2}})], path)
    assert not path.exists()


GOOD: dict[str, Any] = {"id": "a", "prompt": "p", "data": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(GOOD) + "\nnot json\n", "line 2 is not a JSON object"),
        ('{"id": "a", "promt": "p"}', "row 1: Object missing required field `prompt`"),
        ('{"id": 3, "prompt": "p"}', "row 1: Expected `str`, got `int` - at `$.id`"),
        (json.dumps({**GOOD, "data": "{"}), "row 1: Expecting property name"),
        ('{"id": "a", "prompt": "p", "answer": "2"}', "row 1 has id, prompt, answer, but no 'data': move what"),
    ],
)
def test_a_malformed_file_raises_with_its_row(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    with pytest.raises(MarlError) as error:
        read_tasks(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def row(name: str, question: str, **info: Any) -> Task:
    return Task(name, question, {"data_source": "s", "reward_model": {"ground_truth": "4"}, "extra_info": info})


@pytest.mark.parametrize(
    ("training", "test", "files", "both"),
    [
        ([row("0", "1 + 1?"), row("1", "2 + 1?")], [row("0", "3 + 1?"), row("1", "4 + 1?")], False, []),
        ([row("a", "1 + 1?", index=0)], [row("b", " 1  + 1?\n", index=9)], False, ["b"]),
        ([Task("0", "p", {"answer": 1})], [Task("0", "q", {"answer": 1})], True, []),
        (
            [Task("a", "p", {"board": [1]})],
            [Task("b", "p", {"board": [2]}), Task("c", "p", {"board": [1]})],
            True,
            ["c"],
        ),
        ([Task("a", "p"), Task("b", "p")], [Task("c", "p"), Task("a", "p")], True, ["a"]),
    ],
)
def test_tasks_are_compared_by_question(training: list[Task], test: list[Task], files: bool, both: list[str]) -> None:
    assert [task.id for task in trained(training, test, files)] == both
