"""Public data sets: local files in a set's own columns, the hub, and errors with file, row and field."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_datasets import Fields, LeftOut, PublicSet, PublicTasks, clipped, task_id, verdict
from marl_verl_math.tasks import MathTasks
from marl_verl_search.tasks import SearchTasks

from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.tasks import Task


def _task(row: Fields) -> Task:
    if row.text("answer") == "none":
        raise LeftOut("without an answer")
    question = row.text("question", "problem")
    return Task(task_id("quiz", question), question, {"answer": row.text("answer")})


class Quiz(PublicTasks):
    sets = {
        "quiz": PublicSet("somebody/quiz", _task, config="main", splits={"train": "train"}),
        "files": PublicSet("somebody/files", _task, splits={"test": "test"}, files={"test": ["a.jsonl", "b.jsonl"]}),
        "more": PublicSet("somebody/more", _task, splits={"test": "train"}),
    }


ROWS = [{"Question": f"{n} + 1?", "answer": n + 1} for n in range(6)]
QUIZ = Quiz(train="quiz", test="quiz")


def written(path: Path, rows: list[Any]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.json", "t.parquet"])
def test_a_local_file_in_the_columns_of_the_set(tmp_path: Path, name: str) -> None:
    tasks = QUIZ.read(written(tmp_path / name, ROWS), "train")
    assert [(task.prompt, task.data) for task in tasks] == [(f"{n} + 1?", {"answer": str(n + 1)}) for n in range(6)]
    assert tasks[0].id == task_id("quiz", " 0  + 1? ")


NO_PAIRS = {"question": "?", "answer": "a", "context": {"title": ["a"], "sentences": []}}


@pytest.mark.parametrize(
    ("tasks", "row", "message"),
    [
        (QUIZ, {"question": "b", "anser": 1}, "row 1 has no field 'answer': did"),
        (QUIZ, {"question": ["a"], "answer": 1}, "row 1: field 'question' must be a text, got ['a']"),
        (MathTasks(train="dapo-math-17k"), {"prompt": "?", "reward_model": {}}, "has no field 'ground_truth'"),
        (MathTasks(train="olympiadbench"), {"question": "?", "final_answer": []}, "must be a text, or a list"),
        (SearchTasks(train="nq"), {"question": "?"}, "row 1 has no field 'golden_answers' or 'answer'"),
        (SearchTasks(train="hotpotqa"), NO_PAIRS, "row 1: ValueError"),
    ],
)
def test_a_malformed_row_is_named_with_its_field(tmp_path: Path, tasks: PublicTasks, row: Any, message: str) -> None:
    with pytest.raises(MarlError, match=f"{tmp_path}/t.jsonl.*{re.escape(message)}"):
        tasks.read(written(tmp_path / "t.jsonl", [row]), "train")


SVAMP = {"ID": "c1", "Body": "Ann has 2 eggs.", "Question": "And with one more?", "Equation": "2 + 1", "Answer": 3.0}


@pytest.mark.parametrize(
    ("row", "fields", "prompt", "answer"),
    [
        (SVAMP, {"question": ["Body", "Question"]}, "Ann has 2 eggs.\n\nAnd with one more?", "3.0"),
        ({"asked": "2?", "answer": "2"}, {"Question": "asked"}, "2?", "2"),
        (
            {"question": "2?", "choices": ["1", "2"], "answer": "2"},
            {"question": ["question", "choices"]},
            "2?\n\n1\n2",
            "2",
        ),
    ],
)
def test_columns_are_read_as_fields_say(tmp_path: Path, row: Any, fields: Any, prompt: str, answer: str) -> None:
    (task,) = build(Quiz, {"train": "quiz", "fields": fields}, "o").read(written(tmp_path / "t.jsonl", [row]), "train")
    assert (task.prompt, task.data) == (prompt, {"answer": answer})
    rows = [{"asked": f"{kind}?", "data": data} for kind, data in (("JSON", '{"answer": "2"}'), ("text", "none"))]
    tasks = Quiz(fields={"prompt": "asked"}).read(written(tmp_path / "own.jsonl", rows), "train")
    assert [task.data for task in tasks] == [{"answer": "2"}, {}]


def test_tasks_of_the_hub_are_a_reproducible_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Mock(return_value=ROWS)
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load))
    tasks = QUIZ.generate("train", 3, 7)
    assert load.call_args_list == [call("somebody/quiz", "main", split="train")]
    assert tasks == QUIZ.generate("train", 3, 7)
    assert len({tuple(task.id for task in QUIZ.generate("train", 3, seed)) for seed in range(8)}) > 1
    chosen = Quiz(train="quiz", train_rows=(1, 3)).generate("train", 4096, 0)
    assert [task.prompt for task in chosen] == ["1 + 1?", "2 + 1?"]
    assert len(QUIZ.generate("train", 7, 0)) == 6


def test_a_verdict_is_one_word_in_tags() -> None:
    texts = (
        *("x <VERIFY> Reject </verify> y", "<verify>reject</verify> <verify>approve</verify>"),
        "<verify>maybe</verify>",
    )
    assert [verdict(text, ("approve", "reject")) for text in texts] == ["reject", None, None]


@given(st.text(max_size=60), st.integers(8, 60))
def test_a_clipped_text_fits_and_keeps_its_ends(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= max(most, 7)
    assert short == text or (len(text) > most and short[-1] == text[-1])
