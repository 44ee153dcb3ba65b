"""Public data sets: local files in a set's own columns, the hub, and errors with file, row and field."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import yaml

from marl_verl import plugins
from marl_verl.errors import MarlError, MarlWarning
from marl_verl.options import build
from marl_verl.tasks import Fields, LeftOut, PublicSet, PublicTasks, Task, task_id


def _task(row: Fields) -> Task:
    if row.text("answer") == "none":
        raise LeftOut("without an answer")
    question = row.text("question", "problem")
    return Task(task_id("quiz", question), question, {"answer": row.text("answer")})


FILES = {"test": ["a.jsonl", "b.jsonl"]}


class Quiz(PublicTasks):
    sets = {
        "quiz": PublicSet("somebody/quiz", _task, config="main", splits={"train": "train"}),
        "files": PublicSet("somebody/files", _task, splits={"test": "test"}, files=FILES),
        "more": PublicSet("somebody/more", _task, splits={"test": "train"}),
    }


FIELDS = "marl.task.options.fields={question: "
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


def test_a_part_of_a_set(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", ROWS)
    tasks = Quiz(train="quiz", train_rows=(2, 4)).read(path, "train")
    assert [task.prompt for task in tasks] == ["2 + 1?", "3 + 1?"]
    assert len(Quiz(train="quiz", train_rows=(4, None)).read(path, "train")) == 2
    with pytest.raises(MarlError, match=r"t\.jsonl' has 6 tasks, which do not include train_rows \[5, 8\]"):
        Quiz(train="quiz", train_rows=(5, 8)).read(path, "train")


def test_rows_left_out_are_counted(tmp_path: Path) -> None:
    rows = [*ROWS, ROWS[0], {**ROWS[1], "answer": 9}, {"question": "?", "answer": "none"}, {**ROWS[0], "question": 0}]
    rows[-1] = {"question": "a very long question indeed", "answer": 1}
    with pytest.warns(MarlWarning) as caught:
        tasks = Quiz(train="quiz", most_words=4).read(written(tmp_path / "t.jsonl", rows), "train")
    assert len(tasks) == 6
    (message,) = [str(warning.message) for warning in caught]
    counts = "1 repeated, 1 repeated with other data, 1 without an answer, 1 longer than 4 words"
    assert message.endswith(f"t.jsonl': 6 tasks; rows left out: {counts}")


def test_rows_that_are_tasks_need_no_set(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", [{"id": "a", "prompt": "p", "data": {"x": 1}}])
    assert Quiz().read(path, "train") == QUIZ.read(path, "test") == [Task("a", "p", {"x": 1})]
    with pytest.raises(MarlError, match=r"row 1 has no text 'id'.* set marl\.task\.options\.test to one of quiz"):
        Quiz().read(written(tmp_path / "rows.jsonl", ROWS), "test")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "t.jsonl",
            '{"question": "a", "answer": 1}\n{"question": "b", "anser": 1}',
            "row 2 has no field 'answer': did",
        ),
        ("t.jsonl", '{"answer": 1}', "row 1 has no field 'question' or 'problem': valid: answer"),
        ("t.jsonl", '{"question": ["a"], "answer": 1}', "row 1: field 'question' must be a text, got ['a']"),
        ("t.jsonl", '{"question": "a", "answer": "none"}', "has no tasks; rows left out: 1 without an answer"),
    ],
)
def test_a_malformed_file_raises_with_row_and_field(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(MarlError) as error:
        QUIZ.read(tmp_path / name, "train")
    assert str(tmp_path / name) in str(error.value)
    assert message in str(error.value)


def test_fields_of_other_types() -> None:
    row = Fields({"list": ["a", 2], "text": " b ", "packed": '{"x": [1]}', "bad": "{", "number": 3}, "file, row 1")
    assert (row.texts("list"), row.texts("text"), row.texts("number")) == (["a", "2"], ["b"], ["3"])
    assert row.inner("packed").items("x") == [1]
    for read, message in (
        (lambda: row.inner("bad"), "field 'bad' must be an object, and its text is not JSON"),
        (lambda: row.items("number"), "field 'number' must be a list, got 3"),
        (lambda: Fields({"a": [[]]}, "f").texts("a"), "field 'a' must be a text, or a list of texts"),
        (lambda: row.inner("packed").text("y"), "file, row 1, field 'packed' has no field 'y'"),
    ):
        with pytest.raises(MarlError) as error:
            read()
        assert message in str(error.value)


SVAMP = {"ID": "c1", "Body": "Ann has 2 eggs.", "Question": "And with one more?", "Equation": "2 + 1", "Answer": 3.0}


@pytest.mark.parametrize(
    ("row", "fields", "prompt", "answer"),
    [
        (SVAMP, {"question": ["Body", "Question"]}, "Ann has 2 eggs.\n\nAnd with one more?", "3.0"),
        (SVAMP, {"question": "Question"}, "And with one more?", "3.0"),
        ({"query": "1 + 1?", "gold": 2}, {"question": "query", "answer": "gold"}, "1 + 1?", "2"),
        (
            {"question": "2?", "choices": ["1", "2"], "answer": "2"},
            {"question": ["question", "choices"]},
            "2?\n\n1\n2",
            "2",
        ),
        ({"question": "1?", "reward_model": {"ground_truth": "2"}}, {"answer": "reward_model.ground_truth"}, "1?", "2"),
        ({"question": "1?", "final_answer": 2, "answer": "2"}, {}, "1?", "2"),
        ({"question": "1?", "context": "", "options": None, "answer": "2", "solution": "long"}, {}, "1?", "2"),
        ({"question": "Ann has 2. And?", "body": "Ann has 2.", "answer": "2"}, {}, "Ann has 2. And?", "2"),
        (
            SVAMP,
            {},
            None,
            f"column 'Body' is not read, and looks like a part of the question. Set {FIELDS}[Body, Question]}}",
        ),
        (SVAMP, {"question": "Bdy"}, None, "no field 'Bdy' (marl.task.options.fields.question): did you mean 'Body'?"),
        (
            SVAMP,
            {"questoin": "Body"},
            None,
            "has 'questoin', which public set 'quiz' does not read: did you mean 'ques",
        ),
        ({"question": "1?", "choices": ["1", "2"], "answer": "2"}, {}, None, f"Set {FIELDS}[question, choices]}}, or"),
        (
            {"question": "1?", "Incorrect Answer 1": "3", "answer": "2"},
            {},
            None,
            "column 'Incorrect Answer 1' is not read",
        ),
        ({"question": "1?", "answer": "long", "final_answer": 2}, {}, None, "fields={answer: final_answer}."),
    ],
)
def test_columns_are_read_as_fields_say_and_none_is_lost(
    tmp_path: Path, row: dict[str, Any], fields: dict[str, Any], prompt: str | None, answer: str
) -> None:
    tasks = build(Quiz, {"train": "quiz", "fields": fields}, "o")
    path = written(tmp_path / "t.jsonl", [row])
    if prompt is None:
        with pytest.raises(MarlError) as error:
            tasks.read(path, "train")
        assert answer in str(error.value)
    else:
        (task,) = tasks.read(path, "train")
        assert (task.prompt, task.data) == (prompt, {"answer": answer})


def test_fields_without_a_set(tmp_path: Path) -> None:
    row = {"prompt": "1 + 1?", "answer": 2, "source": "x"}
    path = written(tmp_path / "t.jsonl", [row, {**row, "id": 7, "data": {"level": 3}, "prompt": "1 + 2?"}])
    first, second = Quiz(fields={"answer": "answer"}).read(path, "train")
    assert (first.prompt, first.data, second.data) == ("1 + 1?", {"answer": 2}, {"level": 3, "answer": 2})
    for more, message in (
        ({"answer": 2}, "fields={answer: answer}"),
        ({"context": "c"}, "{prompt: [prompt, context]}"),
    ):
        with pytest.raises(MarlError) as error:
            Quiz().read(written(path, [{"id": "a", "prompt": "p", **more}]), "train")
        assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": "quizz"}, "unknown public set 'quizz': did you mean 'quiz'?"),
        ({"train_rows": [3, 3]}, "train_rows must be [first, end]"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError) as error:
        build(Quiz, options, "o")
    assert message in str(error.value)


# the hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    module = types.ModuleType("datasets")

    def load_dataset(*arguments: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append((arguments, options))
        return ROWS

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return calls


def test_tasks_of_the_hub_are_a_reproducible_choice(hub: list[Any]) -> None:
    tasks = QUIZ.generate("train", 3, 7)
    assert hub == [(("somebody/quiz", "main"), {"split": "train"})]
    assert tasks == QUIZ.generate("train", 3, 7)
    assert len({tuple(task.id for task in QUIZ.generate("train", 3, seed)) for seed in range(8)}) > 1
    assert [task.prompt for task in Quiz(train="quiz", train_rows=(1, 3)).generate("train", 4096, 0)] == [
        "1 + 1?",
        "2 + 1?",
    ]
    with pytest.raises(MarlError, match=r"found only 6 of 7 train tasks. Set marl\.task\.train_size to at most 6"):
        QUIZ.generate("train", 7, 0)


def test_several_held_out_sets_keep_their_names(hub: list[Any]) -> None:
    """Each has at most as many tasks as the size; a problem that is in two of them is a task of both."""
    tasks = Quiz(test=["files", "more"]).generate("test", 4096, 0)
    assert [task.data["set"] for task in tasks] == ["files"] * 6 + ["more"] * 6
    assert len({task.id for task in tasks}) == 12
    assert [task.prompt for task in tasks[:6]] == [task.prompt for task in tasks[6:]]
    paths = [f"hf://datasets/somebody/files/{name}" for name in FILES["test"]]
    assert hub[0] == (("json",), {"data_files": paths, "split": "train"})
    assert hub[1] == (("somebody/more", None), {"split": "train"})
    few = Quiz(test=["files", "more"]).generate("test", 2, 0)
    assert [task.data["set"] for task in few] == ["files", "files", "more", "more"]
    assert "set" not in Quiz(test=["more"]).generate("test", 2, 0)[0].data
    loads = "somebody/files, a.jsonl, b.jsonl and somebody/more, split 'train'"
    assert Quiz(test=["files", "more"]).loads("test") == loads


def test_a_file_is_of_one_set(tmp_path: Path) -> None:
    path = written(tmp_path / "t.jsonl", ROWS)
    with pytest.raises(MarlError, match=r"t\.jsonl': marl\.task\.options\.test names 2 sets"):
        Quiz(test=["files", "more"]).read(path, "test")


def test_no_set_no_such_split_no_package_and_no_network(hub: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MarlError, match=r"or marl\.task\.options\.test to one of quiz, files, more"):
        Quiz().generate("test", 1, 0)
    for read in (lambda: QUIZ.generate("test", 1, 0), lambda: QUIZ.loads("test")):
        with pytest.raises(MarlError, match="public set 'quiz' has no test tasks: it is train data"):
            read()
    rows = Quiz(train="quiz", train_rows=(2, 4))
    assert (QUIZ.loads("train"), rows.loads("train"), Quiz().loads("train"), hub) == (
        "somebody/quiz (main), split 'train'",
        "somebody/quiz (main), split 'train', rows 2 to 3",
        None,
        [],
    )

    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach the\nHub")

    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", offline)
    message = r"\(ConnectionError: Couldn't reach the Hub\)\. .* set marl\.task\.train_file"
    with pytest.raises(MarlError, match=message):
        QUIZ.generate("train", 1, 0)


def test_the_page_of_tasks_shows_a_mapping(tmp_path: Path) -> None:
    """The recipe of docs/tasks.md reads the row that its comment has."""
    page = (Path(__file__).parents[1] / "docs" / "tasks.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    task = yaml.safe_load(block)["marl"]["task"]
    row = json.loads(
        re.findall(r"# (\{.*\})", block)[0].replace("...", '"Ann has 150."', 1).replace("...", '"5 left?"')
    )
    tasks = build(plugins.load().get("tasks", task["name"]), task["options"], "marl.task.options")
    (read,) = tasks.read(written(tmp_path / task["train_file"], [row]), "train")
    assert "Ann has 150. 5 left?" in " ".join(read.prompt.split())
    assert read.data["answer"] == "145"
