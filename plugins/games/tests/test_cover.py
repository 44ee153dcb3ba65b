"""Cover, and the metric that says whether agents with one prompt act differently."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from marl_verl_games.cover import Cover, CoverTogether, RoleDifference
from marl_verl_games.crew import NEXT, Crew, Spawner
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent, Sample

TASK = Task("cover a b", "choose a b", {"items": ["a", "b"]})


def test_the_score_is_the_share_of_the_items() -> None:
    answers = ["1 2", "2 1", "1 1", "2", "1 3", "3 4", "none none", "", "1 2 3", "a b"]
    assert [Cover().score(TASK, answer) for answer in answers] == [1, 1, 0.5, 0.5, 0.5, 0, 0, 0, 1, 0]


def test_all_agents_see_one_prompt_and_act_together() -> None:
    policy = ScriptedPolicy({"agent-1": "1", "agent-2": "1 2"})
    run = check_workflow(CoverTogether(), TASK, policy)
    assert (run.answer, run.invalid) == ("1 none", {("agent-2", "0"): "no number of the list"})
    assert [act.observation for act, _ in run.turns] == [run.turns[0][0].observation] * 2
    check_sampler(Independent(episodes=3), CoverTogether(), TASK, policy, tasks=Cover())


def sampled(one: Callable[[int], str], two: Callable[[int], str], episodes: int = 4) -> Sample:
    def script(choose: Callable[[int], str]) -> Callable[..., str]:
        return lambda act, session, candidate: choose(session)

    policy = ScriptedPolicy({"agent-1": script(one), "agent-2": script(two)})
    return asyncio.run(Independent(episodes=episodes).sample(ScriptedContext(CoverTogether(), TASK, policy)))


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        (lambda _: "a", lambda _: "b", 1.0),  # fixed and different
        (lambda _: "a", lambda _: "a", 0.0),  # fixed and equal
        (lambda session: "ab"[session % 2], lambda session: "ab"[session % 2], 0.0),  # equally random
        (lambda session: "ab"[session % 2], lambda _: "a", 0.5 - 1 / 3),  # 1/2 between; 2/3 and 0 within
    ],
)
def test_the_difference_of_roles(one: Callable[[int], str], two: Callable[[int], str], found: float) -> None:
    sample = sampled(one, two)
    assert RoleDifference().of_sample(sample) == {"team/difference": pytest.approx(found)}
    for episode in sample.episodes:  # each agent acts twice alike in an episode: no more episodes
        episode.turns += [replace(turn, index=turn.index + 2) for turn in episode.turns]
    assert RoleDifference().of_sample(sample) == {"team/difference": pytest.approx(found)}


def test_a_planner_decides_how_many_workers_there_are() -> None:
    task = Task("crew", "do 3 9 leave 1 1 none", {"digits": ["3", "9"]})
    policy = ScriptedPolicy({"planner": "two", "worker": lambda act: NEXT.get(shown(act)[-1], "0")})
    for workers, answer, score in ((0, "4 0", 0.8), (3, "4 0 0", 0.7), (1, "4", -0.1)):
        run = check_workflow(Spawner(workers), task, policy, may_not_act=["planner"])
        assert (run.answer, Crew().score(task, run.answer)) == (answer, pytest.approx(score))
