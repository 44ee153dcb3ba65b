"""The sampler, the credit and the algorithm, without a model, and the names that the plugin registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from marl_verl import Task
from marl_verl.plugins import KINDS, assemble
from marl_verl.testing import ScriptedPolicy, check_algorithm, check_credit, check_sampler, shown

import my_method
from my_method.method import ALGORITHM, Median, Saving, StepForward
from my_method.team import CallOut, Numbers

TASK = Task("number-427", "4 2 7", {"digits": list("427")})


def row(uid: str, session: int, index: int, team: float, credit: float) -> dict[str, Any]:
    """The caller's and the writer's acts in turn."""
    rewards = {"team": team, "role": team / 2, "credit": credit}
    act = {"turn": index // 2, "agent": ("caller", "writer")[index % 2], "slot": str(index // 2)}
    return {"uid": uid, "session": session, "index": index, **act, "rewards": rewards, "length": 3}


# sessions of one or two rounds
ROWS = [
    row(uid, session, index, float(session % 2), float((session + index) % 3 - 1))
    for uid, sessions in (("p", 5), ("q", 2))
    for session in range(sessions)
    for index in range(4 if session % 2 else 2)
]


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


def test_a_turn_is_credited_with_what_it_did_to_the_answer() -> None:
    policy = ScriptedPolicy({"caller": ["4 2 7", "4 2"], "writer": ["7", "4 2 7"]})
    episode, *_ = check_credit(StepForward(), CallOut(), TASK, policy, Numbers(), sessions=1)
    assert [turn.rewards["credit"] for turn in episode.turns] == [1.0, -1.0, 0.0, 1.0]
    assert sum(turn.rewards["credit"] for turn in episode.turns) == episode.score


def test_the_median_of_each_group() -> None:
    value, group = np.array([1.0, 5.0, 0.0, 2.0, 9.0]), np.array([0, 1, 0, 0, 1])
    assert Median().compute(value, group).tolist() == [1.0, 7.0, 1.0, 1.0, 7.0]


def test_the_algorithm_passes_the_checks_of_every_algorithm() -> None:
    result = check_algorithm(ALGORITHM, ROWS)
    assert result.reward.tolist() == [r["rewards"]["team"] * 1.25 + r["rewards"]["credit"] / 2 for r in ROWS]
    assert result.advantage.any()


def test_every_name_leads_to_its_part() -> None:
    found = assemble({"this": my_method})
    mine = [entry for kind in KINDS for entry in found.entries(kind) if entry.source.plugin == "this"]
    assert len(mine) == 6
    for entry in mine:
        assert found.get(entry.kind, entry.name) is not None
    assert ALGORITHM.sampler in found.names("samplers")
