"""Public sets of questions, each on rows in its published columns."""

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_search.answers import gaia, normalised, number, tagged
from marl_verl_search.routed import SearchTeam
from marl_verl_search.source import Index, corpus
from marl_verl_search.tasks import SearchTasks

from marl_verl import MarlError, Task

ADA = [{"title": "Ada", "text": "Ada is. She was."}, {"title": "B", "text": "b"}]
HOTPOT = {"question": "Who?", "answer": "Ada", "context": [["Ada", ["Ada is.", " She was."]], ["B", ["b"]]]}
HUB = {**HOTPOT, "context": {"title": ["Ada", "B"], "sentences": [["Ada is.", " She was."], ["b"]]}}
WIKI2 = {**HOTPOT, "context": json.dumps([["Ada", ["Ada is.", "She was."]], ["B", ["b"]]])}
MUSIQUE = {
    "question": "When?",
    "answer": "1912",
    "answer_aliases": ["year 1912", "1912"],
    "answerable": True,
    "paragraphs": [
        {"idx": n, "title": each["title"], "paragraph_text": each["text"], "is_supporting": True}
        for n, each in enumerate(ADA)
    ],
}
SEARCH_R1 = {
    "question": "which ocean?",
    "golden_answers": ["Pacific", "the Pacific"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer the given question. ..."}],
    "reward_model": {"ground_truth": {"target": ["Pacific"]}, "style": "rule"},
}
GAIA = {"task_id": "c61d22de", "Question": "How many?", "Final answer": "1,204", "file_name": ""}
WALKER = {
    "question": "When and where?",
    "answer": "On 3 May 2025, in Norrvik.",
    "root_url": "https://conf.example.org/",
    "info": {"hop": "multi-source", "lang": "en"},
}
FRAMES = {
    "Unnamed: 0": 0,
    "Prompt": "In which year was the older of the two bridges opened?",
    "Answer": "1887",
    "wikipedia_link_1": "https://en.wikipedia.org/wiki/Sundby",
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
    *((name, GAIA, {"answers": ["1,204"], "metric": "gaia"}) for name in ("gaia", "gaia-level3")),
    ("webwalkerqa", WALKER, {"answers": ["On 3 May 2025, in Norrvik."], "metric": "f1"}),
    ("frames", FRAMES, {"answers": ["1887"]}),
]


@pytest.mark.parametrize(("name", "row", "data"), ROWS)
def test_a_row_of_each_set(tmp_path: Path, name: str, row: dict[str, Any], data: dict[str, Any]) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row))
    (task,) = SearchTasks(test=name).read(path, "test")
    question = next(row[column] for column in ("question", "Question", "Prompt") if column in row)
    assert (task.prompt, task.data) == (question + (WEBSITE if name == "webwalkerqa" else ""), data)
    assert SearchTasks().score(task, task.data["answers"][-1]) == 1.0


# Exact match, F1, numbers, the rule of GAIA; scores by hand; the index


TASK = Task("q", "?", {"answer": "The Cello", "aliases": "violoncello"})


@pytest.mark.parametrize(
    ("answer", "em", "f"),
    [("  THE (cello)! ", 1, 1), ("cello and viola", 0, 0.5), ("cello cello", 0, 2 / 3), ("yes", 0, 0)],
)
def test_scores_by_hand(answer: str, em: float, f: float) -> None:
    assert SearchTasks().score(TASK, answer) == em
    assert SearchTasks(metric="f1").score(TASK, answer) == pytest.approx(f)
    assert SearchTasks(metric="f1").success(TASK, answer) == bool(em)
    assert SearchTasks().public_score(TASK, answer) == float(bool(normalised(answer)))


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("1234", ("1,234", "$1234", " 1234.0 ", "1234%"), ("1235", "about 1234", "", "1234, 5", "nan")),
        ("Sea gull", ("seagull", "SEA GULL.", "sea-gull"), ("sea gulls", "the sea gull", "")),
        ("b, e", ("B,E", "b ;e"), ("b, e, f", "e, b", "b", "b e", "b., e")),
        ("inf", ("Inf.",), ("many", "nan")),
    ],
)
def test_the_rule_of_gaia(truth: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    """Expected values follow from the paper's rule: a number, a list or a text, as the truth is."""
    assert [gaia(answer, truth) for answer in right] == [1.0] * len(right)
    assert [gaia(answer, truth) for answer in wrong] == [0.0] * len(wrong)


def test_an_answer_is_read_from_a_text_with_other_uses_of_its_form() -> None:
    answers = "In <answer> tags: <answer>4</answer>", "<answer> 4 </answer>, in <answer></answer>", "an <answer>"
    assert [tagged(text, "answer") for text in answers] == ["4", "4", None]
    pairs = ("1e-05", "0.00001"), ("it is \N{MINUS SIGN}5", "-5"), ("2010-2015", "2015"), ("1,200.", "1.2E+3")
    for text, truth in pairs:
        assert (number(text, truth), number(truth, text), number("9", truth)) == (1.0, 1.0, 0.0)


def test_the_best_texts_come_first_and_ties_in_their_order() -> None:
    texts = ["red mill red", "red lake", "a city far away"]
    searched = Index(texts)
    assert (searched.search("mill", 3), searched.search("LAKE, red!", 3)) == (texts[:1], [texts[1], texts[0]])
    assert searched.search("red", 1) == texts[:1]
    assert Index(["red", "blue", "RED"]).search("Red", 3) == ["red", "RED"]


@pytest.mark.parametrize(("query", "error"), [(" ?!", ValueError), ("zebra", LookupError)])
@pytest.mark.parametrize("texts", [[], ["?"], ["a b"]])
def test_a_search_that_finds_nothing_is_an_error(texts: list[str], query: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Index(texts).search(query, 3)


def test_a_corpus(tmp_path: Path) -> None:
    file = tmp_path / "wiki.jsonl"
    norrvik, sundby = {"contents": '"Norrvik"\nA town.'}, {"title": "Sundby", "text": "A bridge, 1887.", "url": "s.org"}
    file.write_text("\n".join(map(json.dumps, (norrvik, sundby))))
    assert corpus(file).search("town in norrvik", 2) == ["Norrvik: A town."]
    assert corpus(file).search("1887 bridge", 1) == ["Sundby: A bridge, 1887. (s.org)"]
    file.with_name("bad.jsonl").write_text('{"title": "x"}')
    file.with_name("empty.jsonl").write_text("")
    for name, message in (("bad", "row 1 has no field 'text'"), ("empty", "is empty"), ("wiky", "did you mean")):
        with pytest.raises(MarlError, match=message):
            corpus(tmp_path / f"{name}.jsonl")
    with pytest.raises(MarlError, match="row 1 has no field 'text'"):  # before a run, not in each of its searches
        SearchTeam(source=str(file.with_name("bad.jsonl")))
