"""Public data sets become task files: on rows of their form, made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from marl_verl_code.joint_code import JointCode
from marl_verl_magrpo.convert import arxiv, convert, humaneval, main, tldr

from marl_verl import MarlError
from marl_verl.tasks.task_files import read_tasks

TEST = '''
METADATA = {"author": "unknown"}
import math

def check(candidate):
    """Docs."""
    numbers = [1, 2, 3]
    assert candidate(numbers) == 3
    assert candidate([]) is None, "empty"
    for n in range(3):
        assert candidate([n]) == n
    assert math.isclose(candidate([0.5]), 0.5)

if __name__ == "__main__":
    check(largest)
'''
ROW = {
    "task_id": "HumanEval/999",
    "prompt": 'def largest(numbers):\n    """The largest, None of none."""\n',
    "entry_point": "largest",
    "test": TEST,
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_humaneval_becomes_tests_and_setup() -> None:
    task = humaneval(ROW, 1)
    assert (task.id, task.data["entry"]) == ("HumanEval/999", "largest")
    assert len(task.data["tests"]) == 4
    assert task.data["tests"][2].startswith("for n in range(3):")
    assert task.data["setup"].splitlines() == ["METADATA = {'author': 'unknown'}", "import math", "numbers = [1, 2, 3]"]
    helper, solution = (
        "def aux(x):\n    return max(x)\n",
        "def largest(numbers):\n    return aux(numbers) if numbers else None\n",
    )
    assert JointCode().score(task, {"helper": helper, "main": solution}) == pytest.approx(4.0)
    wrong = {"helper": helper, "main": "def largest(numbers):\n    return aux(numbers)\n"}
    assert JointCode().score(task, wrong) == pytest.approx(2.25 + 0.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"test": "def check(:"}, "row 7: 'test' is not Python"),
        ({"test": "x = 1"}, "row 7: 'test' has no function 'check'"),
        ({"test": "def check(candidate):\n    pass"}, "row 7: 'check' asserts nothing"),
        ({"entry_point": None}, "row 7 has no text 'entry_point'"),
    ],
)
def test_rows_of_another_form_raise(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MarlError, match=sentence):
        humaneval({**ROW, **change}, 7)


def test_posts_and_abstracts() -> None:
    task = tldr({"prompt": "POST: It rains.\n\nTL;DR:", "completion": "wet"}, 3)
    assert (task.id, task.prompt, task.data) == ("tldr-3", "POST: It rains.", {})
    assert (
        arxiv({"abstract_text": " We\n  show. "}, 1).prompt == arxiv({"abstract": "We show."}, 1).prompt == "We show."
    )


def test_a_file_is_converted_and_read_back(tmp_path: Path) -> None:
    rows = [{"prompt": "word " * count} for count in (3, 50, 4, 5)]
    source = write(tmp_path / "posts.jsonl", *rows)
    assert convert("tldr", source, tmp_path / "new" / "train.jsonl", most_words=10, take=(0, 2)) == 2
    assert [task.id for task in read_tasks(tmp_path / "new" / "train.jsonl")] == ["tldr-1", "tldr-3"]
    assert convert("tldr", source, tmp_path / "test.jsonl", most_words=10, take=(2, 9)) == 1
    pq.write_table(pa.Table.from_pylist([ROW]), tmp_path / "eval.parquet")
    assert main(["humaneval", str(tmp_path / "eval.parquet"), str(tmp_path / "eval.jsonl")]) == 0
    assert read_tasks(tmp_path / "eval.jsonl") == [humaneval(ROW, 1)]


def test_errors_print_a_message_and_write_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.jsonl"
    bad = write(tmp_path / "bad.jsonl", {"prompt": "fine"}, {"text": "?"})
    for source, message in (
        (tmp_path / "absent.jsonl", "no file"),
        (bad, "row 2 has no text 'prompt': it has text"),
        (write(tmp_path / "none.jsonl"), "nothing to write"),
    ):
        assert main(["tldr", str(source), str(target)]) == 2
        output = capsys.readouterr().err
        assert message in output
        assert output.count("\n") == 1
        assert not target.exists()
    (tmp_path / "half.jsonl").write_text('{"prompt": "x"', encoding="utf-8")
    assert main(["tldr", str(tmp_path / "half.jsonl"), str(target)]) == 2
    assert "line 1 is not a JSON object" in capsys.readouterr().err


def test_a_json_list_is_converted(tmp_path: Path) -> None:
    source, target = tmp_path / "posts.json", tmp_path / "out.jsonl"
    source.write_text(json.dumps([{"prompt": "a post TL;DR:"}, {"prompt": "another"}], indent=1))
    assert convert("tldr", source, target) == 2
    assert [task.prompt for task in read_tasks(target)] == ["a post", "another"]
