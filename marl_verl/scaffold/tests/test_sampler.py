"""The sampler, the credit of what it sampled, and the metric: without a model, with scripted agents."""

from __future__ import annotations

import pytest
from marl_verl import Task
from marl_verl.testing import ScriptedPolicy, check_credit, check_sampler, shown

from my_method.credit import StepForward
from my_method.metric import Sessions
from my_method.numbers import Numbers
from my_method.sampler import Saving
from my_method.workflow import CallOut

TASK = Task("number-427", "4 2 7", {"digits": list("427")})


def caller(right: int) -> ScriptedPolicy:
    """A caller that is right in the first sessions, and a writer that writes what it hears."""
    return ScriptedPolicy(
        {
            "caller": lambda act, session, candidate: "4 2 7" if session < right else f"4 {session} {act.turn}",
            "writer": lambda act: shown(act).removeprefix("heard "),
        }
    )


@pytest.mark.parametrize(("right", "sessions"), [(0, 6), (3, 6), (4, 4), (6, 4)])
def test_solved_tasks_get_fewer_sessions(right: int, sessions: int) -> None:
    sample = check_sampler(Saving(first=4), CallOut(), TASK, caller(right), sessions=6, tasks=Numbers())
    assert [episode.session for episode in sample.episodes] == list(range(sessions))
    assert Sessions().of_sample(sample) == {"my-method/sessions": float(sessions)}


def test_a_turn_is_credited_with_what_it_did_to_the_answer() -> None:
    policy = ScriptedPolicy({"caller": ["4 2 7", "4 2"], "writer": ["7", "4 2 7"]})
    episode, *_ = check_credit(StepForward(), CallOut(), TASK, policy, Numbers(), sessions=1)
    assert [turn.rewards["credit"] for turn in episode.turns] == [1.0, -1.0, 0.0, 1.0]
    assert sum(turn.rewards["credit"] for turn in episode.turns) == episode.score
