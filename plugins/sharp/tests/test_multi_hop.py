"""Multi-hop questions without a model: search, score, the team, its credits, and MuSiQue's rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_sharp import musique
from marl_verl_sharp.algorithm import SHARP
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_sharp.multi_hop import MultiHopParagraphs, normalised
from marl_verl_sharp.multi_hop_team import NOTHING, PlannerAndSearchers
from marl_verl_sharp.search import Paragraphs

from marl_verl import Episode, MarlError, Task
from marl_verl.episode import Act
from marl_verl.sampling import Independent
from marl_verl.tasks import read_tasks
from marl_verl.testing import ScriptedContext, ScriptedPolicy, check_credit, check_sampler, check_workflow, shown

TASKS = MultiHopParagraphs()
PARAGRAPHS = [
    {"title": "Norrvik", "text": "Norrvik is a town. Its bridge was opened in 1912."},
    {"title": "Ada Lindqvist", "text": "She was a botanist, born in Norrvik."},
    {"title": "Sundby", "text": "Sundby is a town. Its bridge was opened in 1887."},
]
TASK = Task(
    "q", "When was the bridge at the birthplace of Ada Lindqvist opened?", {"answer": "1912", "paragraphs": PARAGRAPHS}
)
TEAM = ("planner", "one", "two", "three")


# Search and score


def test_rare_words_count_more_and_equal_paragraphs_keep_their_order() -> None:
    place = Paragraphs(PARAGRAPHS)
    assert [found.split(":")[0] for found in place.search("Where was Ada born?", 1)] == ["Ada Lindqvist"]
    # "town" and "bridge" are in two paragraphs, "Sundby" in one; without it the two are alike
    assert [found.split(":")[0] for found in place.search("bridge of SUNDBY", 3)] == ["Sundby", "Norrvik"]
    assert [found.split(":")[0] for found in place.search("bridge", 3)] == ["Norrvik", "Sundby"]
    assert place.search("botanist", 3) == ["Ada Lindqvist: She was a botanist, born in Norrvik."]


@pytest.mark.parametrize(("query", "error"), [(" ?!", ValueError), ("zebra", LookupError)])
def test_a_search_that_finds_nothing_is_an_error(query: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        Paragraphs(PARAGRAPHS).search(query, 3)


def test_answers_are_compared_after_normalisation() -> None:
    assert normalised("  The  Cello, of (a) FRIEND! ") == "cello of friend"
    task = Task("q", "?", {"answer": "The Cello", "aliases": ["violoncello"]})
    assert [TASKS.score(task, reply) for reply in ("cello.", "Violoncello", "a cello and more", "")] == [1, 1, 0, 0]
    assert [TASKS.public_score(task, reply) for reply in ("viola", "", "the")] == [1, 0, 0]


# The team


def planner(act: Act) -> str:
    """Asks where she was born, then about the bridge there, then answers with the last report."""
    if act.turn == 0:
        return '<ask to="one">Where was Ada Lindqvist born?</ask> <ask to="two">Which towns are there?</ask>'
    reports = dict(line.split(" reports: ") for line in shown(act).splitlines() if " reports: " in line)
    if act.turn == 1:
        return f'<ask to="three">When was the bridge of {reports["one"]} opened?</ask>'
    return f"<answer>{reports['three']}</answer>"


def finds(word: str, query: str) -> Callable[[Act], str]:
    """Searches once, and reports this word if it was found."""

    def says(act: Act) -> str:
        if "To search:" in shown(act):
            return f"<search>{query}</search>"
        return f"<report>{word if word in shown(act) else 'nothing'}</report>"

    return says


def bridge(act: Act) -> str:
    """Searches for the town whose bridge it is asked about, and reports the year."""
    if "To search:" in shown(act):
        town = shown(act).split("bridge of ")[1].split()[0]
        return f"<search>{town}</search>"
    return f"<report>{shown(act).split('opened in ')[1][:4] if 'opened in ' in shown(act) else 'nothing'}</report>"


TALK = {
    "planner": planner,
    "one": finds("Norrvik", "Ada Lindqvist born"),
    "two": finds("Sundby", "Sundby"),
    "three": bridge,
}


def played(policy: dict[str, Any], **options: Any) -> tuple[Episode, ScriptedContext]:
    context = ScriptedContext(
        PlannerAndSearchers(**options), TASK, ScriptedPolicy(policy), tasks=TASKS, mix=SHARP.rewards
    )
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    return episode, context


def test_two_hops_take_two_rounds_and_everybody_sees_its_part_only() -> None:
    run = check_workflow(PlannerAndSearchers(), TASK, ScriptedPolicy(TALK))
    assert run.answer == "1912"
    assert [act.agent for act, _ in run.turns].count("planner") == 3
    seen = {act.key: act.observation for act, _ in run.turns}
    assert TASK.prompt not in str(seen["three", "0"])
    assert seen["one", "1"][0]["content"].startswith("Where was Ada Lindqvist born?")
    assert [message["role"] for message in seen["planner", "2"]] == ["user", "assistant"] * 2 + ["user"]
    assert "Rounds of questions left: 1." in seen["planner", "2"][-1]["content"]


def test_its_sampling_and_credits_keep_what_the_kit_asks() -> None:
    check_sampler(Independent(2), PlannerAndSearchers(), TASK, ScriptedPolicy(TALK), tasks=TASKS)
    assert isinstance(SHARP.credit, Counterfactual)
    check_credit(SHARP.credit, PlannerAndSearchers(), TASK, ScriptedPolicy(TALK), TASKS)


def test_the_worker_that_was_not_needed_is_idle() -> None:
    episode, context = played(TALK)
    assert isinstance(SHARP.credit, Counterfactual)
    assert SHARP.credit.placeholder == NOTHING  # a masked worker reports as one that has nothing to report
    asyncio.run(SHARP.credit.assign(context, episode))
    found = {turn.agent: turn.rewards.get("mc") for turn in episode.turns}
    assert found == {"planner": None, "one": 1.0, "two": 0.0, "three": 1.0}
    assert {turn.agent: turn.rewards.get("tool") for turn in episode.turns}["one"] == 1.0


def test_a_worker_whose_report_misleads_the_planner_is_harmful() -> None:
    def misled(act: Act) -> str:
        if act.turn == 0:
            return '<ask to="three">bridge of Norrvik</ask><ask to="two">bridge of Sundby</ask>'
        years = [line.split()[-1] for line in shown(act).splitlines() if "reports: 1" in line]
        return f"<answer>{min(years, default='')}</answer>"  # the earlier one

    policy = {**TALK, "planner": misled, "two": bridge}
    episode, context = played(policy)
    assert (episode.answer, episode.score) == ("1887", 0.0)
    asyncio.run(SHARP.credit.assign(context, episode))  # type: ignore[union-attr]
    found = {turn.agent: turn.rewards.get("mc") for turn in episode.turns}
    assert found == {"planner": None, "three": 0.0, "two": -1.0}


def test_a_search_that_fails_costs_tool_reward_and_goes_on() -> None:
    def twice(act: Act) -> str:
        return ["<search>zebra</search>", "<search>Norrvik bridge</search>", "<report>1912</report>"][act.turn]

    def required(act: Act) -> str:
        return '<ask to="one">the bridge</ask>' if act.turn == 0 else "<answer>1912</answer>"

    episode, _ = played({**TALK, "planner": required, "one": twice})
    assert [turn.rewards["tool"] for turn in episode.turns if turn.agent == "one"] == [0.5] * 3
    assert "Error: no paragraph has a word of the query" in str(episode.turns[2].observation)


@pytest.mark.parametrize(
    ("says", "options", "acts", "why"),
    [
        ("I do not know.", {}, {"planner": 1}, "neither an answer nor a sub-question"),
        ('<ask to="four">?</ask>', {}, {"planner": 1}, "neither an answer nor a sub-question"),
        ('<ask to="one">?</ask>', {"rounds": 2}, {"planner": 3, "one": 2}, "no answer"),
        ("<search>bridge</search>", {"alone": True, "rounds": 2, "searches": 2}, {"planner": 5}, "no answer"),
        ("hm", {"alone": True}, {"planner": 1}, "no search and no answer"),
    ],
)
def test_without_an_answer_the_episode_ends_with_an_invalid_act(
    says: str, options: dict[str, Any], acts: dict[str, int], why: str
) -> None:
    episode, _ = played({**dict.fromkeys(TEAM, "hm"), "planner": says}, **options)
    assert (episode.answer, episode.score) == ("", 0.0)
    agents = [turn.agent for turn in episode.turns]
    assert {name: agents.count(name) for name in set(agents)} == acts
    assert [turn.invalid for turn in episode.turns if turn.agent == "planner"][-1] == why


def test_a_worker_that_does_not_report_has_no_answer_and_one_that_only_searches_is_stopped() -> None:
    def required(act: Act) -> str:
        return '<ask to="one">a</ask><ask to="two">b</ask>' if act.turn == 0 else f"<answer>{shown(act)}</answer>"

    episode, _ = played(
        {**TALK, "planner": required, "one": "<search>bridge</search>", "two": "hm"}, rounds=1, searches=2
    )
    assert f"one reports: {NOTHING}\n\ntwo reports: {NOTHING}" in episode.answer
    assert "No rounds of questions left." in episode.answer
    assert [turn.agent for turn in episode.turns].count("one") == 3


def test_the_single_agent_searches_by_itself() -> None:
    def alone(act: Act) -> str:
        steps = ["<search>Ada Lindqvist</search>", "<search>Norrvik bridge</search>", "<answer>1912</answer>"]
        return steps[act.turn]

    run = check_workflow(
        PlannerAndSearchers(alone=True), TASK, ScriptedPolicy({**TALK, "planner": alone}), may_not_act=TEAM[1:]
    )
    assert run.answer == "1912"
    assert [call.agent for call in run.journal.calls()] == ["planner"] * 2


@pytest.mark.parametrize(
    ("task", "options", "agents", "reply"),
    [
        (Task("x", "?", {}), {}, TEAM, "the data of task 'x' has no 'paragraphs'"),
        (Task("x", "?", {"paragraphs": [{"title": "t"}]}), {}, TEAM, "paragraph 0 of task 'x' must have the texts"),
        (TASK, {"planner": "boss"}, TEAM, "unknown agent 'boss'"),
        (TASK, {}, ("planner",), "the team has no worker besides 'planner'"),
    ],
)
def test_an_invalid_row_or_team_raises(
    task: Task, options: dict[str, Any], agents: tuple[str, ...], reply: str
) -> None:
    with pytest.raises(MarlError, match=reply):
        check_workflow(PlannerAndSearchers(**options), task, ScriptedPolicy(dict.fromkeys(agents, "hm")))


def test_invalid_options_and_answers_raise() -> None:
    with pytest.raises(MarlError, match="searches must be 1 or more, got 0"):
        PlannerAndSearchers(searches=0)
    with pytest.raises(MarlError, match="must have a text 'answer'"):
        TASKS.score(Task("x", "?", {}), "1912")
    with pytest.raises(MarlError, match="scores a text, got int"):
        TASKS.score(TASK, 1912)
    with pytest.raises(NotImplementedError, match=r"cannot generate tasks: set marl\.task\.train_file"):
        TASKS.generate("train", 1, 0)


# MuSiQue's files


def line(**changes: Any) -> str:
    """A row as MuSiQue has them."""
    paragraphs = [
        {"idx": place, "title": each["title"], "paragraph_text": each["text"], "is_supporting": place < 2}
        for place, each in enumerate(PARAGRAPHS)
    ]
    row = {"id": "2hop__1_2", "question": TASK.prompt, "answer": "1912", "answer_aliases": ["year 1912"]}
    return json.dumps({**row, "paragraphs": paragraphs, "answerable": True, **changes})


def test_rows_of_musique_become_tasks_that_the_team_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "musique.jsonl", tmp_path / "data" / "train.jsonl"
    source.write_text(f"{line()}\n{line(id='none', answerable=False)}\n\n{line(id='3hop__1', answer='The Cello')}\n")
    assert musique.main([str(source), str(target)]) == 0
    assert capsys.readouterr().out == f"2 questions to {target}\n"
    one, two = read_tasks(target)
    assert (one.id, one.prompt, two.data["answer"]) == ("2hop__1_2", TASK.prompt, "The Cello")
    assert one.data == {"answer": "1912", "aliases": ["year 1912"], "paragraphs": PARAGRAPHS}
    assert check_workflow(PlannerAndSearchers(), one, ScriptedPolicy(TALK)).answer == "1912"
    assert TASKS.score(one, "Year 1912.") == 1.0


@pytest.mark.parametrize(
    ("content", "reply"),
    [
        (None, "no file"),
        ("{", "line 1 is not a JSON object"),
        ("[1]", "row 1 must be an object"),
        (line(answer=3), "row 1 has no text 'answer'"),
        (line(answer_aliases="x"), "row 1 has no list 'answer_aliases'"),
        (line(paragraphs=[{"title": "t"}]), "row 1 has a paragraph without the text 'paragraph_text'"),
        (line(answerable=False), "has no question with an answer"),
    ],
)
def test_another_file_raises_and_nothing_is_written(
    content: str | None, reply: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "musique.jsonl", tmp_path / "train.jsonl"
    if content is not None:
        source.write_text(content)
    assert musique.main([str(source), str(target)]) == 2
    output = capsys.readouterr().err
    assert reply in output
    assert output.count("\n") == 1
    assert not target.exists()


def test_the_example_of_the_recipe_is_of_that_form() -> None:
    for task in read_tasks(Path(__file__).parents[3] / "recipes" / "sharp" / "example_multi_hop.jsonl"):
        assert TASKS.score(task, task.data["answer"]) == 1.0
        check_workflow(PlannerAndSearchers(), task, ScriptedPolicy(dict.fromkeys(TEAM, "hm")), may_not_act=TEAM[1:])
