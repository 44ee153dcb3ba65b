"""Public sets of questions, each on rows in its published columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_search.sets import SETS
from marl_verl_search.tasks import SearchTasks

from marl_verl import MarlError
from marl_verl.errors import MarlWarning

ADA = [{"title": "Ada", "text": "Ada is. She was."}, {"title": "B", "text": "b"}]
HOTPOT = {
    "_id": "5a",
    "question": "Who?",
    "answer": "Ada",
    "type": "bridge",
    "supporting_facts": [["Ada", 0]],
    "context": [["Ada", ["Ada is.", " She was."]], ["B", ["b"]]],
}
HUB = {**HOTPOT, "context": {"title": ["Ada", "B"], "sentences": [["Ada is.", " She was."], ["b"]]}}
WIKI2 = {**HOTPOT, "context": json.dumps([["Ada", ["Ada is.", "She was."]], ["B", ["b"]]]), "evidences": []}
MUSIQUE = {
    "id": "2hop__1_2",
    "question": "When?",
    "question_decomposition": [],
    "answer": "1912",
    "answer_aliases": ["year 1912", "1912"],
    "answerable": True,
    "paragraphs": [
        {"idx": n, "title": each["title"], "paragraph_text": each["text"], "is_supporting": True}
        for n, each in enumerate(ADA)
    ],
}
SEARCH_R1 = {
    "id": "train_0",
    "question": "which ocean?",
    "golden_answers": ["Pacific", "the Pacific"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer the given question. ..."}],
    "reward_model": {"ground_truth": {"target": ["Pacific"]}, "style": "rule"},
}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("nq", {"question": "which ocean?", "answer": ["Pacific"]}, {"answers": ["Pacific"]}),
    ("nq", {"id": "t", "question": "which?", "golden_answers": ["a", "b"]}, {"answers": ["a", "b"]}),
    ("nq-hotpotqa", SEARCH_R1, {"answers": ["Pacific", "the Pacific"]}),
    ("hotpotqa", HOTPOT, {"answers": ["Ada"], "paragraphs": ADA}),
    ("hotpotqa", HUB, {"answers": ["Ada"], "paragraphs": ADA}),
    ("2wiki", WIKI2, {"answers": ["Ada"], "paragraphs": ADA}),
    ("musique", MUSIQUE, {"answers": ["1912", "year 1912"], "paragraphs": ADA}),
    (
        "docmath-eval",
        {"question_id": "x", "question": "Sum?", "paragraphs": ["one", "two"], "ground_truth": 12.5},
        {
            "answers": ["12.5"],
            "paragraphs": [{"title": "Paragraph 0", "text": "one"}, {"title": "Paragraph 1", "text": "two"}],
        },
    ),
]


@pytest.mark.parametrize(("name", "row", "data"), ROWS)
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_row_of_each_set(tmp_path: Path, name: str, row: dict[str, Any], data: dict[str, Any], ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps([row]) if ending == "json" else json.dumps(row))
    (task,) = SearchTasks(test=name).read(path, "test")
    assert (task.prompt, task.data) == (row["question"], data)
    assert SearchTasks().score(task, task.data["answers"][-1]) == 1.0


def test_every_set_has_a_row_here() -> None:
    assert {name for name, *_ in ROWS} == set(SETS)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("nq", {"question": "?"}, "row 1 has no field 'golden_answers' or 'answer'"),
        ("nq", {"question": "?", "answer": []}, "field 'answer' must be a text, or a list of texts, got []"),
        ("hotpotqa", {**HOTPOT, "context": [["title only"]]}, "field 'context' must have pairs of a title and a list"),
        ("hotpotqa", {**HOTPOT, "context": 3}, "field 'context' must be a list, got 3"),
        ("hotpotqa", {**HUB, "context": {"title": ["a"], "sentences": []}}, "has 1 titles and 0 lists of sentences"),
        ("2wiki", {**WIKI2, "context": "["}, "must be a list, and its text is not JSON"),
        ("musique", {**MUSIQUE, "answer": None}, "row 1 has no field 'answer'"),
        ("musique", {**MUSIQUE, "answer_aliases": "x"}, "field 'answer_aliases' must be a list"),
        ("musique", {**MUSIQUE, "paragraphs": [{"title": "t"}]}, "row 1, paragraph 0 has no field 'paragraph_text'"),
        ("docmath-eval", {"question": "?", "paragraphs": [1, []], "ground_truth": 1}, "field 'paragraphs' must be a"),
    ],
)
def test_a_row_of_another_form(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(MarlError) as error:
        SearchTasks(train=name).read(path, "train")
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_unanswerable_questions_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [MUSIQUE, {**MUSIQUE, "question": "No?", "answerable": False}, MUSIQUE]
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.warns(MarlWarning, match="1 tasks; rows left out: 1 unanswerable, 1 repeated"):
        assert len(SearchTasks(train="musique").read(path, "train")) == 1
