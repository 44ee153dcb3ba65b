"""Cover, and the metric that says whether agents with one prompt act differently."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from marl_verl_games.cover import Cover, CoverTogether, RoleDifference
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_task, check_workflow

from marl_verl import Task
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.errors import MarlError

TASK = Task("cover a b", "choose a b", {"items": ["a", "b"]})


def test_the_kit_accepts_the_task_set() -> None:
    for items in (2, 4):
        check_task(Cover(items=items), lambda task: [" ".join(task.data["items"]), task.data["items"][0], "none", ""])


def test_the_score_is_the_share_of_the_items() -> None:
    answers = ["a b", "b a", "a a", "b", "a c", "c d", "none none", "", "a b c", "A B"]
    assert [Cover().score(TASK, answer) for answer in answers] == [1, 1, 0.5, 0.5, 0.5, 0, 0, 0, 1, 0]
    with pytest.raises(MarlError, match="scores a text"):
        Cover().score(TASK, 3)


def test_all_agents_see_one_prompt_and_act_together() -> None:
    policy = ScriptedPolicy({"agent-1": "a", "agent-2": "a b"})
    run = check_workflow(CoverTogether(), TASK, policy)
    assert (run.answer, run.invalid) == ("a none", {("agent-2", "0"): "no item of the list"})
    assert [act.observation for act, _ in run.turns] == [run.turns[0][0].observation] * 2
    check_sampler(Independent(episodes=3), CoverTogether(), TASK, policy, tasks=Cover())


def test_demonstrations_are_words_and_the_agents_start_alike() -> None:
    tasks = Cover()
    one, two = (tasks.demonstrations(agent, 50, 0, 0.5) for agent in ("agent-1", "agent-2"))
    assert one == two
    assert {word for seen, answer in one for word in (*seen.split(), answer)} <= set(tasks.vocabulary())
    assert all(answer in seen.split()[1:] for seen, answer in tasks.demonstrations("agent-1", 50, 0, 1.0))
    with pytest.raises(MarlError, match="did you mean 'agent-1'"):
        tasks.demonstrations("agent1", 1, 0, 0.5)


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
    assert RoleDifference().of_sample(sampled(one, two)) == {"team/difference": pytest.approx(found)}


def test_a_single_episode_says_nothing() -> None:
    def choose(_: int) -> str:
        return "a"

    assert RoleDifference().of_sample(sampled(choose, choose, episodes=1)) == {}


def test_other_prompts_are_not_compared() -> None:
    sample = sampled(lambda _: "a", lambda _: "b")
    for turn in sample.turns:
        turn.act = dataclasses.replace(turn.act, observation=({"role": "user", "content": turn.agent},))
    assert RoleDifference().of_sample(sample) == {}
