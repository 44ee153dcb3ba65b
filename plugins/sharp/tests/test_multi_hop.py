"""Multi-hop questions without a model: the planner's team and its credits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from marl_verl_search.planner import NOTHING, PlannerAndSearchers
from marl_verl_search.tasks import SearchTasks
from marl_verl_sharp.algorithm import SHARP
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_credit, check_sampler, check_workflow, shown

from marl_verl import Episode, MarlError, Task
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act
from marl_verl.tasks import read_tasks

TASKS = SearchTasks()
PARAGRAPHS = [
    {"title": "Norrvik", "text": "Norrvik is a town. Its bridge was opened in 1912."},
    {"title": "Ada Lindqvist", "text": "She was a botanist, born in Norrvik."},
    {"title": "Sundby", "text": "Sundby is a town. Its bridge was opened in 1887."},
]
TASK = Task(
    "q", "When was the bridge at the birthplace of Ada Lindqvist opened?", {"answer": "1912", "paragraphs": PARAGRAPHS}
)
TEAM = ("planner", "one", "two", "three")


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
    assert isinstance(SHARP.replay_credits[0], Counterfactual)
    check_credit(SHARP.replay_credits[0], PlannerAndSearchers(), TASK, ScriptedPolicy(TALK), TASKS)


def test_the_worker_that_was_not_needed_is_idle() -> None:
    episode, context = played(TALK)
    assert isinstance(SHARP.replay_credits[0], Counterfactual)
    assert SHARP.replay_credits[0].placeholder == NOTHING  # a masked worker reports as one that has nothing to report
    asyncio.run(SHARP.replay_credits[0].assign(context, episode))
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
    asyncio.run(SHARP.replay_credits[0].assign(context, episode))
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
        (Task("x", "?", {"paragraphs": [{"title": "t"}]}), {}, TEAM, "the data of task 'x' has no 'paragraphs'"),
        (TASK, {"planner": "boss"}, TEAM, "unknown agent 'boss'"),
        (TASK, {}, ("planner",), "the team has no worker besides 'planner'"),
    ],
)
def test_an_invalid_row_or_team_raises(
    task: Task, options: dict[str, Any], agents: tuple[str, ...], reply: str
) -> None:
    with pytest.raises(MarlError, match=reply):
        check_workflow(PlannerAndSearchers(**options), task, ScriptedPolicy(dict.fromkeys(agents, "hm")))


def test_the_example_of_the_recipe_is_of_that_form() -> None:
    for task in read_tasks(Path(__file__).parents[3] / "recipes" / "sharp" / "example_multi_hop.jsonl"):
        assert TASKS.score(task, task.data["answer"]) == 1.0
        check_workflow(PlannerAndSearchers(), task, ScriptedPolicy(dict.fromkeys(TEAM, "hm")), may_not_act=TEAM[1:])
