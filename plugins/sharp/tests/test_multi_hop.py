"""Multi-hop questions without a model: the planner's team and its credits."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl_search.planner import NOTHING, PlannerAndSearchers
from marl_verl_search.tasks import SearchTasks
from marl_verl_sharp.algorithm import SHARP
from marl_verl_sharp.counterfactual import Counterfactual
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown
from marl_verl_testing.rows import algorithm, row

from marl_verl import Episode, MarlError, Task
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act
from tests.batches import advantage, compute

PARAGRAPHS = [
    {"title": "Norrvik", "text": "Norrvik is a town. Its bridge was opened in 1912."},
    {"title": "Ada Lindqvist", "text": "She was a botanist, born in Norrvik."},
    {"title": "Sundby", "text": "Sundby is a town. Its bridge was opened in 1887."},
]
TASK = Task(
    "q", "When was the bridge at the birthplace of Ada Lindqvist opened?", {"answer": "1912", "paragraphs": PARAGRAPHS}
)


def planner(act: Act) -> str:
    """Asks where she was born, then about the bridge there, then answers with the last report."""
    if act.turn == 0:
        return '<ask to="one">Where was Ada Lindqvist born?</ask> <Ask to="two">Which towns are there?</ASK>'
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
        PlannerAndSearchers(**options), TASK, ScriptedPolicy(policy), tasks=SearchTasks(), mix=SHARP.rewards
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


def test_the_worker_that_was_not_needed_is_idle() -> None:
    episode, context = played(TALK)
    assert isinstance(SHARP.replay_credits[0], Counterfactual)
    assert SHARP.replay_credits[0].placeholder == NOTHING  # a masked worker reports as one that has nothing to report
    asyncio.run(SHARP.replay_credits[0].assign(context, episode))
    found = {turn.agent: turn.rewards.get("mc") for turn in episode.turns}
    assert found == {"planner": None, "one": 1.0, "two": 0.0, "three": 1.0}
    assert {turn.agent: turn.rewards.get("tool") for turn in episode.turns}["one"] == 1.0


def test_a_search_that_fails_costs_tool_reward_and_goes_on() -> None:
    def twice(act: Act) -> str:
        return ["<search>zebra</search>", "<search>Norrvik bridge</search>", "<report>1912</report>"][act.turn]

    def required(act: Act) -> str:
        return '<ask to="one">the bridge</ask>' if act.turn == 0 else "<answer>1912</answer>"

    episode, _ = played({**TALK, "planner": required, "one": twice})
    assert [turn.rewards["tool"] for turn in episode.turns if turn.agent == "one"] == [0.5] * 3
    assert "Error: no paragraph has a word of the query" in str(episode.turns[2].observation)


# SHARP's three rewards as one


GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards"


def test_the_planner_earns_a_share_of_what_its_workers_add() -> None:
    rows = [
        row("q", 0, 0, 0, "planner", broadcast=1.0),
        row("q", 0, 1, 0, "search", broadcast=1.0, mc=0.5, tool=1.0),
        row("q", 0, 2, 1, "search", broadcast=1.0, mc=0.1, tool=0.0),  # on average 0.3
        row("q", 0, 3, 0, "code", broadcast=1.0, mc=-1.0),  # harmful: counts as 0 for the planner, as -1 for itself
        row("q", 1, 0, 0, "planner", broadcast=0.0),  # no worker was called
    ]
    reward = compute(algorithm("sharp", lam=2.0), rows).reward
    planner = 0.9 + 0.9 * 2.0 * (0.3 + 0.0) / 2
    np.testing.assert_allclose(reward, [planner, 0.9 + 0.45 + 0.1, 0.9 + 0.09, 0.9 - 0.9, 0.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planner": "planer"}, r"unknown agent 'planer': did you mean 'planner'"),
        ({}, r"row 'q_0_1' of worker 'search' lacks reward 'mc'"),
    ],
)
def test_what_sharp_cannot_do_without(change: dict[str, Any], message: str) -> None:
    rows = [row("q", 0, 0, 0, "planner", broadcast=1.0), row("q", 0, 1, 0, "search", broadcast=1.0)]
    with pytest.raises(MarlError, match=message):
        advantage(algorithm("sharp", **change), rows)


SESSIONS = json.loads((GOLDEN / "sharp_session_mean.json").read_text())


@pytest.mark.parametrize("case", SESSIONS["cases"], ids=lambda case: case["name"])
def test_an_agent_counts_once_in_a_session(case: dict[str, Any]) -> None:
    result = compute(algorithm("sharp"), case["rows"])
    assert case["expected"]["rewards"] == pytest.approx(list(result.reward), rel=SESSIONS["rtol"])
    near = {"rtol": SESSIONS["rtol"], "atol": SESSIONS["atol"]}
    np.testing.assert_allclose(result.advantage, case["expected"]["advantages"], **near)
