"""Independent sampling: episodes are concurrent, and a failed one does not affect others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.workflows import cancelled_cleanly

from marl_verl.algo.sampling import Independent, Sample
from marl_verl.algo.sampling.attempt import attempt
from marl_verl.episode import Act, Action, Episode, Limits, Run, Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task, TaskSet

TASK = Task("t1", "question")
POLICY = ScriptedPolicy({"solver": ["draft", "better"], "judge": lambda act: f"seen {act.observation[0]['content']}"})


class Pair(Workflow):
    """The solver twice, and two judges beside each other."""

    async def run(self, task: Task, team: Team) -> str:
        draft = await team["solver"].act(task.prompt)
        await asyncio.gather(team["judge"].act(draft.text, slot="a"), team["judge"].act(draft.text, slot="b"))
        return (await team["solver"].act(draft.text)).text


class Exact(TaskSet):
    def score(self, task: Task, answer: Any) -> float:
        return float(answer == "better")


class Flaky(ScriptedContext):
    """Session 1 fails in a way of choice."""

    trouble: Callable[[], BaseException]
    where = "act"

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if session == 1 and self.where == "act" and act.agent == "judge":
            raise self.trouble()
        return await super().act(act, session, candidate)

    async def finish(self, run: Run, session: int) -> Episode:
        if session == 1 and self.where == "finish":
            raise self.trouble()
        return await super().finish(run, session)


def sample(context: ScriptedContext, episodes: int = 3) -> Sample:
    async def go() -> Sample:
        found = await Independent(episodes).sample(context)
        assert len(asyncio.all_tasks()) == 1  # nothing is left running
        return found

    return asyncio.run(go())


def test_every_session_becomes_an_episode_with_its_turns_and_score() -> None:
    found = sample(ScriptedContext(Pair(), TASK, POLICY, tasks=Exact()))
    assert [episode.session for episode in found.episodes] == [0, 1, 2]
    assert not found.failures
    episode = found.episodes[2]
    assert (episode.answer, episode.success, episode.journal.seed) == ("better", True, 2)
    assert [(turn.index, turn.agent, turn.slot, turn.turn) for turn in episode.turns] == [
        (0, "solver", "0", 0),
        (1, "judge", "a", 0),
        (2, "judge", "b", 0),
        (3, "solver", "1", 1),
    ]
    assert all((turn.rewards, turn.team_reward) == ({}, 1.0) for turn in episode.turns)
    assert all((turn.uid, turn.session) == ("t1", 2) for turn in episode.turns)


def test_episodes_and_the_acts_of_one_episode_are_sampled_at_the_same_time() -> None:
    class Crowd(ScriptedContext):
        """No judge's request is answered before all judges of all episodes have made one."""

        judges = 0
        all_here: asyncio.Event

        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            if act.agent == "judge":
                self.judges += 1
                if self.judges == 2 * 50:
                    self.all_here.set()
                await asyncio.wait_for(self.all_here.wait(), 60)
            return await super().act(act, session, candidate)

    context = Crowd(Pair(), TASK, POLICY)
    context.all_here = asyncio.Event()
    assert len(sample(context, 50).episodes) == 50


def test_no_episode_waits_for_a_slower_one() -> None:
    finished: list[int] = []

    class Watched(ScriptedContext):
        async def finish(self, run: Run, session: int) -> Episode:
            finished.append(session)
            return await super().finish(run, session)

    sample(Watched(Pair(), TASK, POLICY, delay=lambda act, session: 100 * (2 - session)))
    assert finished == [2, 1, 0]


@pytest.mark.parametrize(
    ("where", "trouble", "reason", "message"),
    [
        ("act", lambda: ConnectionError("no server"), "policy-error", "act judge:a: ConnectionError: no server"),
        ("act", lambda: MarlError("prompt too long"), "policy-error", "act judge:a: prompt too long"),
        ("act", lambda: TimeoutError("60 s"), "timeout", "act judge:a: TimeoutError: 60 s"),
        ("finish", lambda: ZeroDivisionError("by zero"), "score-error", "scoring: ZeroDivisionError: by zero"),
    ],
)
def test_a_failed_session_has_a_reason_and_the_others_continue(
    where: str, trouble: Callable[[], BaseException], reason: str, message: str
) -> None:
    context = Flaky(Pair(), TASK, POLICY)
    context.where, context.trouble = where, trouble
    found = sample(context)
    assert [episode.session for episode in found.episodes] == [0, 2]
    (failure,) = found.failures
    assert (failure.session, failure.reason) == (1, reason)
    assert failure.detail == f"workflow 'Pair' on task 't1', {message}"
    assert "Traceback" in failure.trace
    assert "test_independent.py" in failure.trace


def test_a_workflow_that_raises_is_a_failure_with_the_workflow_named() -> None:
    class Broken(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            if team.random.random() < 0.5:
                raise KeyError("gone")
            return (await team["solver"].act(task.prompt)).text

    found = sample(ScriptedContext(Broken(), TASK, POLICY), 20)
    assert len(found.episodes) + len(found.failures) == 20
    assert found.episodes
    assert found.failures
    assert {failure.reason for failure in found.failures} == {"workflow-error"}
    assert "workflow 'Broken' on task 't1', before any act: KeyError: 'gone'" in found.failures[0].detail
    assert "raise KeyError" in found.failures[0].trace


def test_an_episode_that_takes_too_long_is_a_failure() -> None:
    context = ScriptedContext(
        Pair(), TASK, POLICY, delay=lambda act, session: 10**9 * session, limits=Limits(episode_seconds=0.5)
    )
    found = sample(context, 2)
    assert [episode.session for episode in found.episodes] == [0]
    assert [(failure.session, failure.reason) for failure in found.failures] == [(1, "timeout")]
    assert "longer than 0.5 s" in found.failures[0].detail


def test_a_timeout_of_the_samplers_own_is_not_reported_as_the_episodes() -> None:
    async def own() -> None:
        raise TimeoutError("of the sampler")

    async def go() -> None:
        await attempt(ScriptedContext(Pair(), TASK, POLICY), 0, own())

    with pytest.raises(TimeoutError, match="of the sampler"):
        asyncio.run(go())


def test_cancellation_propagates_and_leaves_nothing_running() -> None:
    async def go() -> None:
        context = ScriptedContext(Pair(), TASK, POLICY, delay=lambda act, session: 10**9)
        await cancelled_cleanly(Independent(5).sample(context))

    asyncio.run(go())
