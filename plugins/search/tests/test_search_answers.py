"""Exact match, F1, numbers, the rule of GAIA; scores by hand; the index."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_search import index
from marl_verl_search.answers import exact_match, f1, gaia, normalised, number
from marl_verl_search.index import Index, corpus
from marl_verl_search.tasks import SearchTasks

from marl_verl import MarlError, Task

TASK = Task("q", "?", {"answers": ["The Cello", "violoncello"]})


@pytest.mark.parametrize(
    ("answer", "em", "f"),
    [
        ("cello.", 1, 1),
        ("  THE (cello)! ", 1, 1),
        ("Violoncello", 1, 1),
        ("an old cello", 0, 2 / 3),
        ("cello and viola", 0, 0.5),
        ("cello cello", 0, 2 / 3),
        ("viola", 0, 0),
        ("yes", 0, 0),
        ("", 0, 0),
        ("the", 0, 0),
    ],
)
def test_scores_by_hand(answer: str, em: float, f: float) -> None:
    assert SearchTasks().score(TASK, answer) == em
    assert SearchTasks(metric="f1").score(TASK, answer) == pytest.approx(f)
    assert SearchTasks(metric="f1").success(TASK, answer) == bool(em)
    assert SearchTasks().public_score(TASK, answer) == float(bool(normalised(answer)))


def test_normal_forms_yes_and_no_and_numbers() -> None:
    assert normalised("  The  Cello, of (a) FRIEND! ") == "cello of friend"
    assert normalised("The U.S.A.") == "usa"
    assert f1("yes it is", "yes") == 0.0  # as in HotpotQA's evaluation
    assert [number(answer, "1,204.5") for answer in ("about 1200", "1204.5 $", "12045", "none", "1190")] == [
        1,
        1,
        0,
        0,
        0,
    ]
    assert SearchTasks(metric="number").success(Task("n", "?", {"answers": ["0.5"]}), "it is .501")


@pytest.mark.parametrize(
    ("truth", "right", "wrong"),
    [
        ("1234", ("1,234", "$1234", " 1234.0 ", "1234%"), ("1235", "about 1234", "", "1234, 5", "nan")),
        ("0.5", ("50e-2", ".5"), ("1/2", "0.51")),
        ("Sea gull", ("seagull", "SEA GULL.", "sea-gull"), ("sea gulls", "the sea gull", "")),
        ("b, e", ("B,E", "b ;e"), ("b, e, f", "e, b", "b", "b e", "b., e")),
        ("Ann; 3, 4.0", ("ann;$3;4",), ("ann;3;5", "ann;3")),
        ("+", ("+", " + "), ("-", "")),
        ("inf", ("Inf.",), ("many", "nan")),
    ],
)
def test_the_rule_of_gaia(truth: str, right: tuple[str, ...], wrong: tuple[str, ...]) -> None:
    """Expected values follow from the paper's rule: a number, a list or a text, as the truth is."""
    assert [gaia(answer, truth) for answer in right] == [1.0] * len(right)
    assert [gaia(answer, truth) for answer in wrong] == [0.0] * len(wrong)


def test_a_set_brings_its_metric_and_the_option_replaces_it() -> None:
    task = Task("g", "?", {"answers": ["1,204; 7"], "metric": "gaia"})
    assert SearchTasks().score(task, "$1; 204;7") == SearchTasks().success(task, "1;204;7") == 1.0
    assert SearchTasks(metric="em").score(task, "1;204;7") == 0.0


def test_a_character_of_chinese_is_a_word() -> None:
    assert f1("会议在北京", "北京") == pytest.approx(4 / 7)
    assert f1("北京 2025", "2025 北京") == 1.0


@given(st.text(max_size=20), st.text(max_size=20))
def test_laws_of_the_metrics(one: str, other: str) -> None:
    assert f1(one, other) == f1(other, one)
    assert exact_match(one, other) <= f1(one, other) <= 1.0
    assert exact_match(one, one) == float(bool(one.strip()))


@pytest.mark.parametrize(
    ("answer", "truth", "right"),
    [
        *(("A", "a", 1), ("The", "the", 1), ("a an", "A  AN", 1), ("+", "+", 1), ("A", "the", 0), ("+", "-", 0)),
        *(("", "A", 0), ("...", "A", 0), ("A.", "a", 1), ("A", "A cello", 0), ("a cello", "The cello", 1)),
    ],
)
def test_an_answer_of_articles_or_punctuation_equals_itself_only(answer: str, truth: str, right: int) -> None:
    assert exact_match(answer, truth) == exact_match(truth, answer) == right


def test_answer_and_aliases_are_answers_too() -> None:
    task = Task("q", "?", {"answer": "The Cello", "aliases": ["violoncello"]})
    assert [SearchTasks().score(task, reply) for reply in ("cello", "violoncello", "viola")] == [1, 1, 0]


# the index


def test_bm25_is_its_formula() -> None:
    texts = ["red mill red", "red lake", "a city far away"]
    searched = Index(texts)
    assert searched.search("mill", 3) == texts[:1]
    assert searched.search("red", 3) == texts[:2]
    assert searched.search("LAKE, red!", 3) == [texts[1], texts[0]]
    assert searched.search("red", 1) == texts[:1]
    # by hand: idf(red) = log(1 + 1.5 / 2.5), mean length 3; f 2 at length 3, f 1 at length 2 (k1 1.5, b 0.75)
    idf = math.log(1 + 1.5 / 2.5)
    wanted = [idf * 2 / (2 + 1.5), idf / (1 + 1.5 * (0.25 + 0.75 * 2 / 3)), 0]
    assert searched._scorer.get_scores(["red"]) == pytest.approx(wanted)
    assert Index(["red", "blue", "RED"]).search("Red", 3) == ["red", "RED"]


@pytest.mark.parametrize(("query", "error"), [(" ?!", ValueError), ("zebra", LookupError)])
@pytest.mark.parametrize("texts", [[], ["?"], ["a b"]])
def test_a_search_that_finds_nothing_is_an_error(texts: list[str], query: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Index(texts).search(query, 3)


def test_a_corpus_is_indexed_once_and_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, folder = tmp_path / "wiki.jsonl", tmp_path / "index"
    file.write_text(
        '{"id": "0", "contents": "\\"Norrvik\\"\\nA town."}\n{"title": "Sundby", "text": "A bridge, 1887."}\n'
    )
    assert index.main([str(file), str(folder)]) == 0
    for place in (file, folder):
        assert corpus(place).search("town in norrvik", 2) == ["Norrvik: A town."]
        assert corpus(place).search("1887 bridge", 1) == ["Sundby: A bridge, 1887."]
    file.with_name("bad.jsonl").write_text('{"title": "x"}')
    file.with_name("empty.jsonl").write_text("")
    for name, message in (
        ("bad.jsonl", "row 1 has no field 'text'"),
        ("empty.jsonl", "is empty"),
        ("wiky.jsonl", "did you mean"),
        ("index", "is a folder"),
    ):
        assert index.main([str(tmp_path / name), str(tmp_path / "other")]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(MarlError, match="is no index"):
        corpus(tmp_path)
