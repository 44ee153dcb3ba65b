"""Best of n: the session with the highest public score is chosen, and the turns of the others are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.sampler import check_sampler
from marl_verl_testing.workflows import TASK, Hashed, Programmed, own_words, talkers, workflows

from marl_verl.algo.sampling import BestOf, Candidate, Sample
from marl_verl.episode import Act, Action, Team, Workflow
from marl_verl.tasks.base import Task, TaskSet

QUESTION = Task("t1", "question")


class Pair(Workflow):
    """A draft, and an answer."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["a"].act(task.prompt)
        return (await team["b"].act(draft.text)).text


class Judged(TaskSet):
    """Answers are "score/public"."""

    def score(self, task: Task, answer: Any) -> float:
        return float(answer.split("/")[0])

    def public_score(self, task: Task, answer: Any) -> float:
        return float(answer.split("/")[1])


def sample(context: ScriptedContext, episodes: int = 3) -> Sample:
    async def go() -> Sample:
        found = await BestOf(episodes).sample(context)
        assert len(asyncio.all_tasks()) == 1  # nothing is left running
        return found

    return asyncio.run(go())


def pairs(answers: list[str], **options: Any) -> ScriptedContext:
    """Session g answers the g-th."""

    def answer(act: Act, session: int, candidate: Candidate) -> str:
        return answers[session]

    return ScriptedContext(Pair(), QUESTION, ScriptedPolicy({"a": "draft", "b": answer}), tasks=Judged(), **options)


def test_the_highest_public_score_is_chosen_whatever_the_task_s_own_score_says() -> None:
    found = sample(pairs(["1/0.2", "0/0.9", "1/0.5"]))
    (episode,) = found.episodes
    assert (episode.session, episode.answer, episode.score, episode.success) == (1, "0/0.9", 0.0, False)
    assert BestOf().public
    assert not BestOf.branches


def test_of_equal_sessions_the_lowest_is_chosen_in_any_arrival_order() -> None:
    for delay in (lambda act, session: 0, lambda act, session: 10 * (3 - session)):
        found = sample(pairs(["1/0.2", "1/0.9", "0/0.9"], delay=delay))
        assert [episode.session for episode in found.episodes] == [1]


def test_the_turns_of_other_sessions_are_off_path_with_their_own_rewards() -> None:
    found = sample(pairs(["1/0.2", "0/0.9", "1/0.5"]))
    (episode,) = found.episodes
    assert [(turn.session, turn.index) for turn in episode.turns] == [(1, 0), (1, 1)]
    assert [(turn.session, turn.index) for turn in episode.off_path_turns] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert [turn.team_reward for turn in found.turns] == [1, 1, 0, 0, 1, 1]
    assert all(turn.node is None for turn in found.turns)


@given(workflows(failing=True), st.integers(0, 5), st.integers(1, 6))
@settings(max_examples=30)
def test_on_any_workflow_every_sampled_turn_of_a_whole_session_is_there_once(
    workflow: Programmed, seed: int, episodes: int
) -> None:
    context = ScriptedContext(workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed, rewards={"solver": own_words})
    found = sample(context, episodes)
    failed = {failure.session for failure in found.failures}
    kept = sorted(set(range(episodes)) - failed)
    assert len(found.failures) == len(failed)
    assert len(found.episodes) == bool(kept)
    given_in = [id(action) for (g, _, _), action in zip(context.asked, context.given, strict=True) if g in kept]
    assert sorted(id(turn.action) for turn in found.turns) == sorted(given_in)
    assert sorted({turn.session for turn in found.turns}) == kept
    for episode in found.episodes:
        assert len(episode.turns) + len(episode.off_path_turns) == len(found.turns)


@given(workflows(failing=True), st.integers(0, 5))
@settings(max_examples=15)
def test_it_keeps_what_every_sampler_promises(workflow: Programmed, seed: int) -> None:
    roles = {"solver": own_words}
    check_sampler(BestOf(4), workflow, TASK, talkers(seed), tasks=Hashed(), rewards=roles, seed=seed, may_fail=True)


class Flaky(ScriptedContext):
    """Some sessions get no action."""

    broken: tuple[int, ...] = ()

    async def act(self, act: Act, session: int, candidate: Candidate = 0, agent: str | None = None) -> Action:
        if session in self.broken:
            raise ConnectionError("no server")
        return await super().act(act, session, candidate)


def test_a_failed_session_is_not_chosen_and_does_not_affect_others() -> None:
    context = Flaky(Pair(), QUESTION, ScriptedPolicy({"a": "x", "b": "1/1"}), tasks=Judged())
    context.broken = (0,)
    found = sample(context)
    assert [episode.session for episode in found.episodes] == [1]
    assert [(failure.session, failure.reason) for failure in found.failures] == [(0, "policy-error")]
    context = Flaky(Pair(), QUESTION, ScriptedPolicy({"a": "x", "b": "1/1"}), tasks=Judged())
    context.broken = (0, 1, 2)
    found = sample(context)
    assert not found.episodes
    assert [failure.session for failure in found.failures] == [0, 1, 2]


def test_an_answer_that_cannot_be_judged_is_a_failure_with_its_reason() -> None:
    found = sample(pairs(["1/0.2", "1/none", "1/0.1"]))
    assert [episode.session for episode in found.episodes] == [0]
    (failure,) = found.failures
    assert (failure.session, failure.reason) == (1, "score-error")
    assert "workflow 'Pair' on task 't1', scoring: ValueError: could not convert string to float" in failure.detail


@pytest.mark.parametrize("public", ["nan", "inf"])
def test_a_public_score_that_is_no_number_is_a_failure(public: str) -> None:
    found = sample(pairs([f"1/{public}", "1/0.2"]), 2)
    assert [episode.session for episode in found.episodes] == [1]
    assert [failure.reason for failure in found.failures] == ["score-error"]
