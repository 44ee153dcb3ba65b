"""The writing tasks: every level of the reward, the gates between levels, and the workflow."""

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow, shown
from marl_verl_writing.levels import BANDS, levels
from marl_verl_writing.two_writers import JointWriting, TwoWriters, WordWriters, WordWriting

from marl_verl import Task
from marl_verl.errors import MarlWarning

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards"
POST = Task("post", "My housemate turns the heating down.", {})


def words(count: int, first: int = 0) -> str:
    """So many different words, without transitions."""
    return " ".join(f"w{first + i}x" for i in range(count))


CASES = [
    pytest.param(kind, case, id=f"{kind}-{case['name']}")
    for kind in BANDS
    for case in json.loads((GOLDEN / f"writing_{kind}.json").read_text())["cases"]
]


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_the_authors_rewards(kind: str, case: dict[str, Any]) -> None:
    """Exact for every text, also where the total depends on the lists of words."""
    expected = case["expected"]
    rewards = levels(case["inputs"]["one"], case["inputs"]["two"], BANDS[kind])
    assert len(rewards) == expected["levels_reached"]
    shown = {level: expected[level] for level in ("structure", "length", "vocabulary", "style")}
    assert {**dict.fromkeys(shown, 0.0), **rewards} == pytest.approx(shown, rel=1e-9, abs=1e-12)
    assert sum(rewards.values()) == pytest.approx(expected["total"], rel=1e-9, abs=1e-12)


def test_the_task_set_scores_by_its_bands() -> None:
    answer = {"one": words(10), "two": f"however, {words(22)}"}
    assert JointWriting().score(POST, answer) == pytest.approx(2.78)
    assert JointWriting().success(POST, answer)
    assert JointWriting(bands="arxiv").score(POST, answer) == 0.0
    assert JointWriting().public_score(POST, answer) == 1.0


def test_both_write_at_once_and_neither_sees_the_other() -> None:
    run = check_workflow(TwoWriters(), POST, ScriptedPolicy({"one": " Cold. ", "two": "Very cold."}))
    assert run.answer == {"one": " Cold. ", "two": "Very cold."}  # blanks count as characters
    (first, _), (second, _) = run.turns
    assert first.joint == second.joint == 0
    for act in (first, second):
        assert POST.prompt in act.observation[-1]["content"]
        assert "Cold." not in act.observation[-1]["content"]
    assert first.observation != second.observation


def test_rows_of_the_public_sets(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    posts = [{"prompt": f"SUBREDDIT: r/{n}\n\nPOST: {words(n)}\n\nTL;DR:", "completion": " x"} for n in (3, 4, 50, 3)]
    path.write_text("\n".join(map(json.dumps, posts)))
    with pytest.warns(MarlWarning, match="2 tasks; rows left out: 1 repeated, 1 longer than 20 words"):
        tasks = JointWriting(train="tldr", most_words=20).read(path, "train")
    assert [task.prompt for task in tasks] == [f"SUBREDDIT: r/{n}\n\nPOST: {words(n)}" for n in (3, 4)]
    path.write_text(json.dumps({"article": "long", "abstract": " We\n show . "}))
    assert [task.prompt for task in JointWriting(test="arxiv").read(path, "test")] == ["We show ."]


def test_word_writing_for_tiny_models() -> None:
    tasks = WordWriting()
    train = tasks.generate("train", 1, 0)
    good = {agent: dict(tasks.demonstrations(agent, 9000, 0, 1.0)) for agent in ("one", "two")}
    policy = ScriptedPolicy({agent: (lambda act: good[act.agent][shown(act)]) for agent in good})
    run = check_workflow(WordWriters(), train[0], policy)
    assert tasks.score(train[0], run.answer) > 2.5
    assert tasks.score(train[0], {"one": "dogs", "two": "dogs"}) == 0.0
    assert tasks.public_score(train[0], run.answer) == 1.0
