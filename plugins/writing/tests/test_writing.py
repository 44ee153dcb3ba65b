"""The writing tasks: every level of the reward, the gates between levels, and the workflow."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_writing.levels import (
    ARXIV,
    BANDS,
    STOP_WORDS,
    TLDR,
    TRANSITIONS,
    Band,
    coherence,
    different,
    levels,
    overlap,
    ratio,
    structure,
    transitions,
    vocabulary,
)
from marl_verl_writing.two_writers import JointWriting, TwoWriters, divided, length, tldr_length
from marl_verl_writing.word_writing import WordWriters, WordWriting

from marl_verl import MarlError, Task
from marl_verl.errors import MarlWarning
from marl_verl.sampling import Independent
from marl_verl.testing import ScriptedContext, ScriptedPolicy, check_task, check_workflow, shown

POST = Task("post", "My housemate turns the heating down.", {})


def words(count: int, first: int = 0) -> str:
    """So many different words, none of them a stop word or a transition."""
    return " ".join(f"w{first + i}x" for i in range(count))


@pytest.mark.parametrize(
    ("band", "value", "worth"),
    [
        (TLDR.ratio, 1.1, 0.0),
        (TLDR.ratio, 1.35, 0.5),
        (TLDR.ratio, 1.6, 1.0),
        (TLDR.ratio, 3.2, 1.0),
        (TLDR.ratio, 4.1, 0.5),
        (TLDR.ratio, 5.0, 0.0),
        (TLDR.ratio, 9.0, 0.0),
        (TLDR.vocabulary, 1.3, 0.0),
        (TLDR.vocabulary, 1.65, 0.5),
        (TLDR.vocabulary, 50.0, 1.0),
        (ARXIV.ratio, 0.8, 0.0),
        (ARXIV.ratio, 1.05, 0.5),
        (ARXIV.ratio, 1.45, 1.0),
        (ARXIV.ratio, 1.8, 0.5),
        (ARXIV.vocabulary, 0.6, 0.5),
        (ARXIV.vocabulary, 1.0, 1.0),
        (ARXIV.vocabulary, 1.5, 0.5),
        (ARXIV.vocabulary, 1.7, 0.0),
    ],
)
def test_bands(band: Band, value: float, worth: float) -> None:
    assert band.of(value) == pytest.approx(worth)


def test_structure_wants_both_parts_long_and_short_enough() -> None:
    assert structure(words(8), words(256), TLDR)
    assert not structure(words(7), words(20), TLDR)
    assert not structure(words(20), words(257), TLDR)
    assert structure(words(128), words(256), ARXIV)
    assert not structure(words(127), words(200), ARXIV)


def test_ratio_counts_words_and_vocabulary_different_ones() -> None:
    repeated = " ".join([words(10)] * 2)
    assert ratio(words(10), repeated, TLDR) == 1.0
    assert vocabulary(words(10), repeated, TLDR) == 0.0
    assert vocabulary(words(10), words(20), TLDR) == 1.0
    assert ratio("", words(3), TLDR) == vocabulary("the a of", words(3), TLDR) == 0.0


def test_different_words_leave_out_case_stop_words_and_marks() -> None:
    assert different("The Cat, the CAT; and a well-known dog's bone!") == {"cat", "well-known", "dog's", "bone"}
    assert overlap("the red cat", "a red dog") == pytest.approx(1 / 3)
    assert overlap("the", "of") == 0.0
    assert len(STOP_WORDS) > 100


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ("Nothing of it here", 0.0),
        ("However, he slept", 0.4),
        ("However, he slept. Yet it rained", 0.4),  # two of one kind
        ("However, he slept, therefore it rained", 0.45),
        ("However he slept. FOR  EXAMPLE: it rained, thus we stayed", 0.5),
        ("The butter is whatever", 0.0),  # words, not letters inside them
    ],
)
def test_transitions(text: str, worth: float) -> None:
    assert transitions(text) == pytest.approx(worth)


def test_all_twelve_kinds_are_worth_the_most() -> None:
    assert len(TRANSITIONS) == 12
    assert transitions(". ".join(phrases[0] for phrases in TRANSITIONS.values())) == pytest.approx(0.95)
    for kind, phrases in TRANSITIONS.items():
        assert transitions(phrases[0]) >= 0.4, kind


def test_coherence_of_tldr_looks_for_transitions_in_part_two_and_of_arxiv_in_both() -> None:
    one, two = f"however {words(40)}", words(40, first=20)  # J = 20 of 60
    assert coherence(one, two, TLDR) == pytest.approx(0.6)
    assert coherence(one, two, ARXIV) == pytest.approx(0.6 + 0.16)
    assert coherence(words(40), words(40, first=38), ARXIV) == pytest.approx(0.6 * (2 / 78) / 0.23)
    assert coherence(words(100), words(100, first=99), TLDR) == pytest.approx(0.6 * (1 / 199) / 0.03)


def test_every_level_gates_the_next() -> None:
    assert levels(words(5), words(20), TLDR) == {"structure": 0.0}
    assert levels(words(10), words(60), TLDR) == {"structure": 0.5, "ratio": 0.0}
    assert levels(words(10), " ".join([words(10)] * 2), TLDR) == {"structure": 0.5, "ratio": 1.0, "vocabulary": 0.0}
    assert levels(words(10), words(20, first=10), TLDR) == {
        "structure": 0.5,
        "ratio": 1.0,
        "vocabulary": 0.5,
        "coherence": 0.0,
    }


def test_the_whole_reward_of_a_good_pair() -> None:
    two = f"however, {words(22)}"
    assert sum(levels(words(10), two, TLDR).values()) == pytest.approx(2.0 + 0.4 * 0.4 + 0.6)


@given(one=st.text(max_size=300), two=st.text(max_size=300), kind=st.sampled_from(sorted(BANDS)))
def test_whatever_is_written_earns_0_to_3(one: str, two: str, kind: str) -> None:
    found = levels(one, two, BANDS[kind])
    assert 0 <= sum(found.values()) <= 3
    for before in list(found.values())[:-1]:
        assert before > 0


def test_the_task_set_scores_by_its_bands() -> None:
    answer = {"one": words(10), "two": f"however, {words(22)}"}
    assert JointWriting().score(POST, answer) == pytest.approx(2.76)
    assert JointWriting().success(POST, answer)
    assert not JointWriting(enough=2.9).success(POST, answer)
    assert JointWriting(bands="arxiv").score(POST, answer) == 0.0
    assert JointWriting().public_score(POST, answer) == 1.0


@pytest.mark.parametrize("answer", ["text", {"one": "a"}, {"one": "a", "two": 2}, None])
def test_another_answer_is_a_mistake(answer: Any) -> None:
    with pytest.raises(MarlError, match="joint-writing scores two parts"):
        JointWriting().score(POST, answer)


def test_options_are_checked() -> None:
    with pytest.raises(MarlError, match="enough must be above 0 and at most 3, got 4"):
        JointWriting(enough=4)
    with pytest.raises(MarlError, match="turns must be at least 1, got 0"):
        TwoWriters(turns=0)


def test_both_write_at_once_and_neither_sees_the_other() -> None:
    run = check_workflow(TwoWriters(), POST, ScriptedPolicy({"one": " Cold. ", "two": "Very cold."}))
    assert run.answer == {"one": "Cold.", "two": "Very cold."}
    (first, _), (second, _) = run.turns
    assert first.joint == second.joint == 0
    for act in (first, second):
        assert POST.prompt in act.observation[-1]["content"]
        assert "Cold." not in act.observation[-1]["content"]
    assert first.observation != second.observation


def test_with_more_turns_each_sees_both_parts() -> None:
    run = check_workflow(
        TwoWriters(turns=2, kind="arxiv"), POST, ScriptedPolicy({"one": ["A", "C"], "two": ["B", "D"]})
    )
    assert run.answer == {"one": "C", "two": "D"}
    assert "Part one: A\nPart two: B" in run.turns[2][0].observation[-1]["content"]


def test_a_single_writer_divides_its_answer() -> None:
    run = check_workflow(TwoWriters(), POST, ScriptedPolicy({"writer": "Cold.\n\n---\nVery cold."}))
    assert run.answer == {"one": "Cold.", "two": "Very cold."}
    assert not run.invalid
    run = check_workflow(TwoWriters(), POST, ScriptedPolicy({"writer": "Cold. Very cold."}))
    assert run.answer == {"one": "Cold. Very cold.", "two": ""}
    assert list(run.invalid) == [("writer", "0")]
    assert divided("a\n-----\nb\n---\nc") == ("a", True, "b\n---\nc")


def test_other_teams_raise() -> None:
    with pytest.raises(MarlError, match="two-writers needs the agents 'one' and 'two', or 'writer': got one"):
        check_workflow(TwoWriters(), POST, ScriptedPolicy({"one": "x"}))


# by hand: pairs, and the sum of their levels


@pytest.mark.parametrize(
    ("one", "two", "score"),
    [
        (words(10), f"however, {words(22)}", 2.76),  # 0.5 + 1 + 0.5 + 0.4 * 0.4 + 0.6
        (words(10), words(20, first=10), 2.0),  # no transition, no word in common
        (words(10), words(20), 2.6),
        (words(10), f"however therefore {words(20)}", 2.0 + 0.4 * 0.45 + 0.6),
        (words(7), words(20), 0.0),  # too short
        (words(10), words(60), 0.5),  # six times as long
        (words(10), " ".join([words(10)] * 2), 1.5),  # the same words twice
        ("", "", 0.0),
        (words(300), words(20), 0.0),  # too long
        (words(20), words(27), 0.5 + 0.5 + 0.5 / 14 + 0.6),  # both ratios 1.35: half of 1, and 0.05 / 0.7 of 0.5
    ],
)
def test_scores_by_hand(one: str, two: str, score: float) -> None:
    assert JointWriting().score(POST, {"one": one, "two": two}) == pytest.approx(score)


def test_the_length_reward_by_hand() -> None:
    for count, worth in ((0, 0.0), (4, 0.5), (8, 1.0), (256, 1.0), (384, 0.5), (512, 0.0), (600, 0.0)):
        assert length(words(count), TLDR) == pytest.approx(worth)
    assert length(words(64), ARXIV) == 0.5
    policy = ScriptedPolicy({"one": words(4), "two": words(20)})
    rewards = {"one": tldr_length, "two": tldr_length}
    context = ScriptedContext(TwoWriters(), POST, policy, tasks=JointWriting(), rewards=rewards)
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert [turn.rewards["role"] for turn in episode.turns] == [0.5, 1.0]


# public sets, and tiny models


def test_rows_of_the_public_sets(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    posts = [{"prompt": f"SUBREDDIT: r/{n}\n\nPOST: {words(n)}\n\nTL;DR:", "completion": " x"} for n in (3, 4, 50, 3)]
    path.write_text("\n".join(map(json.dumps, posts)))
    with pytest.warns(MarlWarning, match="2 tasks; rows left out: 1 repeated, 1 longer than 20 words"):
        tasks = JointWriting(train="tldr", most_words=20).read(path, "train")
    assert [task.prompt for task in tasks] == [f"SUBREDDIT: r/{n}\n\nPOST: {words(n)}" for n in (3, 4)]
    path.write_text(json.dumps({"article": "long", "abstract": " We\n show . "}))
    assert [task.prompt for task in JointWriting(test="arxiv").read(path, "test")] == ["We show ."]
    path.write_text(json.dumps({"abstract_text": 3.5}) + "\n" + json.dumps({"article": "x"}))
    with pytest.raises(MarlError, match=r"row 2 has no field 'abstract_text' or 'abstract': valid: article"):
        JointWriting(test="arxiv").read(path, "test")


def test_word_writing_for_tiny_models() -> None:
    tasks = WordWriting()
    train, test = tasks.generate("train", 300, 0), tasks.generate("test", 30, 0)
    assert not {task.id for task in train} & {task.id for task in test}
    vocabulary_of = set(tasks.vocabulary())
    good = {}
    for agent in ("one", "two"):
        pairs = tasks.demonstrations(agent, 3000, 0, 0.5)
        assert all(set(f"{seen} {said}".split()) <= vocabulary_of for seen, said in pairs)
        good[agent] = dict(tasks.demonstrations(agent, 9000, 0, 1.0))
    policy = ScriptedPolicy({agent: (lambda act: good[act.agent][shown(act)]) for agent in good})
    run = check_workflow(WordWriters(), train[0], policy)
    assert tasks.score(train[0], run.answer) > 2.5
    assert tasks.score(train[0], {"one": "dogs", "two": "dogs"}) == 0.0
    assert tasks.public_score(train[0], run.answer) == 1.0
    with pytest.raises(MarlError, match="unknown agent of word-writing 'three'"):
        tasks.demonstrations("three", 1, 0, 1.0)


def test_the_kit_checks_the_tiny_tasks() -> None:
    def answers(task: Task) -> list[Any]:
        return [{"one": task.prompt, "two": f"however {task.prompt} cold deep"}, {"one": "", "two": "dogs"}]

    check_task(WordWriting(), answers, scores=(0.0, 3.0))
