"""The converter, on made rows in the public data sets' forms."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from marl_verl_dr_mas.convert import convert, main
from marl_verl_dr_mas.search import SearchTasks
from marl_verl_math.tasks import MathTasks

from marl_verl import Task

ASKS = "\n\nLet's think step by step and output the final answer within \\boxed{}."
DAPO = [
    {"prompt": [{"role": "user", "content": "1 + 1 = ?" + ASKS}], "reward_model": {"ground_truth": "2"}},
    {"prompt": [{"role": "user", "content": "1 + 2 = ?"}], "reward_model": {"ground_truth": "3"}},
]
PLAIN = [{"problem": "1 + 1 = ?", "answer": 2, "level": 1}, {"problem": "What is 1/2?", "answer": "\\frac{1}{2}"}]
HOTPOT = {
    "_id": "5a",
    "question": "Who?",
    "answer": "Ada",
    "context": [["Ada", ["Ada is.", " She was."]], ["B", ["b"]]],
}
HUB = {**HOTPOT, "context": {"title": ["Ada", "B"], "sentences": [["Ada is.", " She was."], ["b"]]}}


def tasks(path: Path) -> list[Task]:
    return [Task(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_math_rows_of_both_forms(tmp_path: Path) -> None:
    source = lines(tmp_path / "rows.jsonl", [*DAPO, *PLAIN])
    # the first of PLAIN is the first of DAPO again, once what is appended is taken off
    assert convert("math", source, tmp_path / "data" / "train.jsonl") == (3, 1)
    found = tasks(tmp_path / "data" / "train.jsonl")
    assert [task.prompt for task in found] == ["1 + 1 = ?", "1 + 2 = ?", "What is 1/2?"]
    assert asyncio.run(MathTasks().score(found[0], "\\boxed{2}")) == 1.0
    assert asyncio.run(MathTasks().score(found[2], "\\boxed{0.5}")) == 1.0
    assert len({task.id for task in found}) == 3


@pytest.mark.parametrize("row", [HOTPOT, HUB])
def test_hotpotqa_rows_of_both_forms(tmp_path: Path, row: dict[str, Any]) -> None:
    source = tmp_path / "rows.json"
    source.write_text(json.dumps([row]), encoding="utf-8")
    assert convert("hotpotqa", source, tmp_path / "out.jsonl") == (1, 0)
    (task,) = tasks(tmp_path / "out.jsonl")
    assert task.data["paragraphs"] == [{"title": "Ada", "text": "Ada is. She was."}, {"title": "B", "text": "b"}]
    assert SearchTasks().score(task, "ada") == 1.0


def test_parquet(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(DAPO), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([HUB]), tmp_path / "b.parquet")
    assert convert("math", tmp_path / "a.parquet", tmp_path / "a.jsonl") == (2, 0)
    assert convert("hotpotqa", tmp_path / "b.parquet", tmp_path / "b.jsonl") == (1, 0)
    assert tasks(tmp_path / "a.jsonl")[1].data == {"answer": "3"}


def test_an_id_is_of_the_question_in_any_file(tmp_path: Path) -> None:
    for name, rows in (("one", PLAIN), ("two", PLAIN[::-1])):
        convert("math", lines(tmp_path / f"{name}.json", rows), tmp_path / f"{name}.jsonl")
    one, two = ({task.id for task in tasks(tmp_path / f"{name}.jsonl")} for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(
    ("form", "rows", "message"),
    [
        ("math", [PLAIN[0], {"text": "?", "answer": 2}], "row 2 is not a row of 'math': needs prompt and"),
        ("math", [{"prompt": "?", "reward_model": {}}], "row 1 is not a row of 'math': needs prompt and"),
        ("hotpotqa", [{"question": "?", "golden_answers": ["a"]}], "row 1 is not a row of 'hotpotqa': needs question,"),
        ("hotpotqa", [{**HOTPOT, "context": [["title only"]]}], "row 1 is not a row of 'hotpotqa': not enough values"),
        ("math", ["a text"], "row 1 must be an object, got 'a text'"),
        ("math", [], "has no rows"),
    ],
)
def test_rows_of_another_form_raise_and_write_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, rows: list[Any], message: str
) -> None:
    source, target = lines(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    assert main([form, str(source), str(target)]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert not target.exists()


def test_files_that_are_not_there_or_not_what_they_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.parquet").write_text("no parquet")
    (tmp_path / "broken.jsonl").write_text('{"problem": ')
    for name, message in (
        ("trian.parquet", "no data file"),
        ("train.parquet", "is not parquet"),
        ("broken.jsonl", "line 1 is not a JSON object"),
    ):
        assert main(["math", str(tmp_path / name), str(tmp_path / "out.jsonl")]) == 2
        assert message in capsys.readouterr().err
    assert main(["math", str(lines(tmp_path / "good.jsonl", PLAIN)), str(tmp_path / "out.jsonl")]) == 0
    assert capsys.readouterr().out.endswith("out.jsonl: 2 tasks\n")


def test_questions_and_lists_of_answers(tmp_path: Path) -> None:
    rows = [{"question": "x^2 = 4", "answer": ["2", "-2"]}, {"question": "1 + 1", "answer": 2}]
    convert("math", lines(tmp_path / "m.jsonl", rows), tmp_path / "out.jsonl")
    assert [task.data for task in tasks(tmp_path / "out.jsonl")] == [{"answer": "2, -2"}, {"answer": "2"}]
    row = {"question": "who?", "answer": ["Ada", "Ada Lovelace"], "context": [["t", ["s"]]]}
    convert("hotpotqa", lines(tmp_path / "h.jsonl", [row]), tmp_path / "out.jsonl")
    assert tasks(tmp_path / "out.jsonl")[0].data["answers"] == ["Ada", "Ada Lovelace"]
