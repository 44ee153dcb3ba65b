"""The routed team and the single agent that searches, and their role rewards."""

import asyncio
import functools
import json
from typing import Any

import httpx
import pytest
from marl_verl_search.planner import PlannerAndSearchers
from marl_verl_search.routed import SearchAlone, SearchTeam, search_hit, verdict_right
from marl_verl_search.tasks import SearchTasks
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent

TASKS = SearchTasks()
PARAGRAPHS = [
    {"title": "The Red Mill", "text": "A painting of 1911 by Piet Mondrian."},
    {"title": "Piet Mondrian", "text": "A painter, born in Amersfoort in 1872."},
    {"title": "Amersfoort", "text": "A city in the Netherlands."},
    {"title": "Red Lake", "text": "A town in Canada."},
]
TASK = Task("t", "Where was the painter of The Red Mill born?", {"answers": ["Amersfoort"], "paragraphs": PARAGRAPHS})
YES, NO = "<verify>yes</verify>", "<verify>no</verify>"
ANSWER = "<think>easy</think> <answer>the Amersfoort.</answer>"


def enough(act: Any) -> str:
    """Enough is known when the painter's birthplace is."""
    return YES if "born in Amersfoort" in shown(act) else NO


def queries(act: Any) -> str:
    return "<search>born Mondrian</search>" if "Piet Mondrian" in shown(act) else "<search>Red Mill painting</search>"


def test_the_verifier_routes_to_a_search_until_it_is_enough() -> None:
    policy = ScriptedPolicy({"verifier": enough, "searcher": queries, "answerer": ANSWER})
    run = check_workflow(SearchTeam(found=1), TASK, policy)
    assert [act.agent for act, _ in run.turns] == ["verifier", "searcher"] * 2 + ["verifier", "answerer"]
    seen = shown(run.turns[-1][0])
    assert "<search>Red Mill painting</search>\n<information>The Red Mill: A painting" in seen
    assert "born in Amersfoort" in seen
    assert "Red Lake" not in seen
    assert TASKS.score(TASK, run.answer) == 1.0


@pytest.mark.parametrize(
    ("unparseable", "agents"),
    [("answer", ["verifier", "answerer"]), ("search", ["verifier", "searcher", "verifier", "searcher", "answerer"])],
)
def test_an_unparseable_verdict_follows_the_option_and_is_invalid(unparseable: Any, agents: list[str]) -> None:
    policy = ScriptedPolicy({"verifier": "yes", "searcher": queries, "answerer": ANSWER})
    run = check_workflow(SearchTeam(unparseable=unparseable, steps=3), TASK, policy, may_not_act=("searcher",))
    assert [act.agent for act, _ in run.turns] == agents
    assert (set(run.invalid.values()), len(run.invalid)) == ({"no verdict"}, agents.count("verifier"))


def test_a_single_agent_searches_and_answers_by_itself() -> None:
    def alone(act: Any) -> str:
        return ANSWER if "born in Amersfoort" in shown(act) else queries(act)

    run = check_workflow(SearchAlone(found=1), TASK, ScriptedPolicy({"answerer": alone}))
    assert len(run.turns) == 3
    assert TASKS.score(TASK, run.answer) == 1.0
    lost = check_workflow(SearchAlone(steps=3), TASK, ScriptedPolicy({"answerer": "hm"}))
    assert (len(lost.turns), lost.answer) == (3, "")
    assert list(lost.invalid.values()) == ["neither a query nor an answer"] * 2 + ["no answer"]


class Counts(SearchTeam):
    """A call of the searcher that has no arguments is no search, and neither is one that returns no texts."""

    async def run(self, task: Task, team: Any) -> str:
        await team["searcher"].call(dict)
        await team["searcher"].call(len, "Mondrian born")
        return await super().run(task, team)


def test_role_rewards_by_hand() -> None:
    """Verdicts and searches of one episode each, and their rewards in the order of the acts."""
    rewards = {"verifier": verdict_right, "searcher": search_hit}
    hit, miss, none = "<search>Mondrian born</search>", "<search>Red Lake</search>", "Mondrian"
    asked = Task("q", "Was Amersfoort or Utrecht his birthplace?", TASK.data)
    policy = ScriptedPolicy({"verifier": YES, "searcher": hit, "answerer": ANSWER})
    context = ScriptedContext(SearchTeam(), asked, policy, tasks=TASKS, rewards=rewards)
    (seen,) = asyncio.run(Independent(1).sample(context)).episodes
    assert seen.turns[0].rewards["role"] == 0.0  # the question is not found
    for verdicts, searches, wanted in (
        ([YES], hit, [0.0]),
        ([NO, YES], hit, [1.0, 1.0, 1.0]),
        ([NO, YES], miss, [1.0, 0.0, 0.0]),
        ([NO, YES], none, [1.0, -0.1, 0.0]),
        (["yes"], hit, [-0.1]),
        ([NO, YES + NO], hit, [1.0, 1.0, -0.1]),
        ([NO, YES], "<search>zebra</search>", [1.0, 0.0, 0.0]),
        ([NO, NO], [miss, hit], [1.0, 0.0, 1.0, 1.0]),
    ):
        policy = ScriptedPolicy({"verifier": verdicts, "searcher": searches, "answerer": ANSWER})
        context = ScriptedContext(Counts(steps=3, found=1), TASK, policy, tasks=TASKS, rewards=rewards)
        (episode,) = asyncio.run(Independent(1).sample(context)).episodes
        found = [turn.rewards["role"] for turn in episode.turns if turn.agent != "answerer"]
        assert found == wanted, (verdicts, searches)


# Where a workflow searches: a server in Search-R1's protocol, a function, a corpus; and their failures


DOCUMENTS = [
    {"document": {"id": "0", "contents": '"Norrvik"\nA town.'}, "score": 0.9},
    {"document": {"title": "Sundby", "text": "A bridge."}, "score": 0.5},
    {"id": "2", "contents": "No title"},
]


def test_a_retrieval_server(monkeypatch: pytest.MonkeyPatch) -> None:
    server, asked = "http://a.org/retrieve", list[Any]()

    def reply(request: httpx.Request) -> httpx.Response:
        asked.append((request.url.path, json.loads(request.content)))
        return httpx.Response(500 if len(asked) == 1 else 200, json={"result": [DOCUMENTS]})  # it is asked again

    client = functools.partial(httpx.AsyncClient, transport=httpx.MockTransport(reply))
    monkeypatch.setattr(httpx, "AsyncClient", client)
    find = SearchTeam(source=server).finder(TASK)
    assert asyncio.run(find("town", 3)) == ["Norrvik: A town.", "Sundby: A bridge.", "No title"]
    assert asked == [("/retrieve", {"queries": ["town"], "topk": 3, "return_scores": True})] * 2


@pytest.mark.parametrize("kind", [SearchTeam, SearchAlone, PlannerAndSearchers])
def test_a_search_that_fails_fails_the_attempt(kind: Any) -> None:
    """It would otherwise be a search that finds nothing, from which agents learn not to search."""
    said = {"verifier": NO, "planner": '<ask to="searcher">x</ask>', **dict.fromkeys(("searcher", "answerer"), queries)}
    context = ScriptedContext(kind(source="web:json:loads"), TASK, ScriptedPolicy(said), tasks=TASKS)
    (failure,) = asyncio.run(Independent(1).sample(context)).failures
    assert "the search failed with TypeError" in failure.detail
