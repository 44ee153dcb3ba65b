"""The converter: synthetic rows of the two formats, and invalid rows."""

from __future__ import annotations

import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from typing import Any

import pytest
from marl_verl_mars2.convert import apps, livecodebench, main

from marl_verl import MarlError
from marl_verl.tasks import read_tasks

PUBLIC = [{"input": "2\n", "output": "4\n", "testtype": "stdin"}]
PRIVATE = [{"input": "3\n", "output": "6\n", "testtype": "stdin"}]


def packed(tests: Any) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(tests))).decode()


def lcb(**changes: Any) -> dict[str, Any]:
    row = {
        "question_id": "1873_A",
        "question_content": "Double a number.",
        "public_test_cases": json.dumps(PUBLIC),
        "private_test_cases": packed(json.dumps(PRIVATE)),
    }
    return {**row, **changes}


@pytest.mark.parametrize("private", [packed(json.dumps(PRIVATE)), json.dumps(PRIVATE), PRIVATE])
def test_livecodebench_packed_as_text_or_as_a_list(private: Any) -> None:
    task = livecodebench(lcb(private_test_cases=private))
    assert task is not None
    assert (task.id, task.prompt) == ("1873_A", "Double a number.")
    assert task.data == {
        "public": [{"input": "2\n", "output": "4\n"}],
        "private": [{"input": "3\n", "output": "6\n"}],
    }


def test_what_asks_for_a_function_or_has_no_private_test_is_left_out() -> None:
    functional = json.dumps([{**PUBLIC[0], "testtype": "functional"}])
    assert livecodebench(lcb(public_test_cases=functional)) is None
    assert livecodebench(lcb(private_test_cases="[]")) is None
    function = {"fn_name": "f", "inputs": ["1"] * 4, "outputs": ["1"] * 4}
    assert apps({"id": 1, "question": "?", "input_output": json.dumps(function)}) is None
    assert apps({"id": 1, "question": "?", "input_output": ""}) is None


def test_apps_keeps_the_first_tests_public() -> None:
    found = {"inputs": ["1", ["2", "3"], "4"], "outputs": ["1", "5", ["4"]]}
    task = apps({"problem_id": 7, "question": "Add.", "input_output": json.dumps(found)}, public=1)
    assert task is not None
    assert task.id == "7"
    assert task.data["public"] == [{"input": "1", "output": "1"}]
    assert task.data["private"] == [{"input": "2\n3", "output": "5"}, {"input": "4", "output": "4"}]
    assert apps({"id": 7, "question": "Add.", "input_output": found}, public=3) is None


class Trap:
    """Pickled, it is a call."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, ("trapped",))


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MarlError, match=r"problem '1873_A' has packed tests that cannot be read: they name \w+.mkdir"):
        livecodebench(lcb(private_test_cases=packed(Trap())))
    assert not (tmp_path / "trapped").exists()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question_id": "1"}, "a row has no column 'public_test_cases': valid: question_id"),
        (lcb(private_test_cases="not base64!"), "problem '1873_A' has packed tests that cannot be read"),
        (lcb(private_test_cases=packed("[")), "problem '1873_A' has tests that are not JSON"),
        (
            lcb(public_test_cases='[{"input": "1"}]'),
            "problem '1873_A' has tests that are no list of inputs and outputs",
        ),
    ],
)
def test_invalid_rows_raise(row: dict[str, Any], message: str) -> None:
    with pytest.raises(MarlError, match=message):
        livecodebench(row)


def test_apps_with_more_inputs_than_outputs_raises() -> None:
    with pytest.raises(MarlError, match="problem '3' has 2 inputs and 1 outputs"):
        apps({"id": 3, "question": "?", "input_output": {"inputs": ["1", "2"], "outputs": ["1"]}})


def test_the_command_writes_a_task_file_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "lcb.jsonl", tmp_path / "code" / "train.jsonl"
    rows = [lcb(), lcb(question_id="2"), lcb(question_id="3", private_test_cases="[]")]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["livecodebench", str(source), str(target)]) == 0
    assert [task.id for task in read_tasks(target)] == ["1873_A", "2"]
    assert capsys.readouterr().out == f"{target}: 2 tasks, 1 rows left out\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no file"),
        ("{", "line 1 is not a JSON object"),
        ("", "has no problem with private tests"),
        ('{"question_id": 1}\n', "a row has no column 'public_test_cases'"),
    ],
)
def test_the_command_writes_nothing_for_a_file_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    source, target = tmp_path / "lcb.jsonl", tmp_path / "train.jsonl"
    if text is not None:
        source.write_text(text)
    assert main(["livecodebench", str(source), str(target)]) == 2
    assert not target.exists()
    output = capsys.readouterr().err
    assert output.startswith("convert: ")
    assert message in output
    assert output.count("\n") == 1
