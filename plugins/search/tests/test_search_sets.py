"""Public sets of questions, each on rows in its published columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
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
GAIA = {
    "task_id": "c61d22de",
    "Question": "How many?",
    "Level": "1",
    "Final answer": "1,204",
    "file_name": "",
    "file_path": "",
    "Annotator Metadata": {"Steps": "1. Count", "Number of steps": "1", "Tools": "Web browser", "Number of tools": "1"},
}
WALKER = {
    "question": "When and where?",
    "answer": "On 3 May 2025, in Norrvik.",
    "root_url": "https://conf.example.org/",
    "info": {
        "hop": "multi-source",
        "domain": "conference",
        "lang": "en",
        "difficulty_level": "easy",
        "source_website": ["https://conf.example.org/venue"],
        "golden_path": ["root->venue"],
    },
}
FRAMES = {
    "Unnamed: 0": 0,
    "Prompt": "In which year was the older of the two bridges opened?",
    "Answer": "1887",
    "wikipedia_link_1": "https://en.wikipedia.org/wiki/Sundby",
    "wikipedia_link_2": "https://en.wikipedia.org/wiki/Norrvik",
    "wikipedia_link_11+": None,
    "reasoning_types": "Numerical reasoning | Multiple constraints",
    "wiki_links": "['https://en.wikipedia.org/wiki/Sundby', 'https://en.wikipedia.org/wiki/Norrvik']",
}
WEBSITE = "\n\nThe answer is on this website: https://conf.example.org/"
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
            "metric": "number",
            "paragraphs": [{"title": "Paragraph 0", "text": "one"}, {"title": "Paragraph 1", "text": "two"}],
        },
    ),
    *(
        (name, GAIA, {"answers": ["1,204"], "metric": "gaia"})
        for name in ("gaia", *(f"gaia-level{n}" for n in (1, 2, 3)))
    ),
    ("webwalkerqa", WALKER, {"answers": ["On 3 May 2025, in Norrvik."], "metric": "f1"}),
    (
        "webwalkerqa",
        {name.title(): value for name, value in WALKER.items()},
        {"answers": [WALKER["answer"]], "metric": "f1"},
    ),
    ("frames", FRAMES, {"answers": ["1887"]}),
]


@pytest.mark.parametrize(("name", "row", "data"), ROWS)
@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_row_of_each_set(tmp_path: Path, name: str, row: dict[str, Any], data: dict[str, Any], ending: str) -> None:
    path = tmp_path / f"rows.{ending}"
    path.write_text(json.dumps([row]) if ending == "json" else json.dumps(row))
    (task,) = SearchTasks(test=name).read(path, "test")
    question = next(row[column] for column in ("question", "Question", "Prompt") if column in row)
    assert task.prompt == question + (WEBSITE if name == "webwalkerqa" else "")
    assert task.data == data
    assert SearchTasks().score(task, task.data["answers"][-1]) == 1.0


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("nq", {"question": "?"}, "row 1 has no field 'golden_answers' or 'answer'"),
        ("hotpotqa", {**HOTPOT, "context": [["title only"]]}, "field 'context' must have pairs of a title and a list"),
        ("hotpotqa", {**HUB, "context": {"title": ["a"], "sentences": []}}, "has 1 titles and 0 lists of sentences"),
        ("musique", {**MUSIQUE, "paragraphs": [{"title": "t"}]}, "row 1, paragraph 0 has no field 'paragraph_text'"),
    ],
)
def test_a_row_of_another_form(tmp_path: Path, name: str, row: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(MarlError) as error:
        SearchTasks(train=name).read(path, "train")
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        (
            "musique",
            [MUSIQUE, {**MUSIQUE, "question": "No?", "answerable": False}, MUSIQUE],
            "1 unanswerable, 1 repeated",
        ),
        (
            "gaia",
            [GAIA, {**GAIA, "Question": "In it?", "file_name": "x"}, {**GAIA, "Question": "?", "Final answer": "?"}],
            "1 with a file, 1 without a public answer",
        ),
    ],
)
def test_rows_that_are_left_out_are_counted(tmp_path: Path, name: str, rows: list[Any], message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.warns(MarlWarning, match=f"1 tasks; rows left out: {message}"):
        assert len(SearchTasks(train=name, test=name).read(path, "test")) == 1
