"""Rendezvous: the task and its workflow."""

import pytest
from marl_verl_magrpo.rendezvous import Meet, Rendezvous
from marl_verl_testing import ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.episode import Act

PLACE = Task("p", "meet at c f 4 2", {"letters": ["c", "f"], "digits": ["4", "2"]})


def goes(act: Act) -> str:
    """Sends its half, then goes to the place that both halves give."""
    known, _, heard = shown(act).removeprefix("know ").partition(" said ")
    if not heard:
        return known
    other = heard.rpartition(" heard ")[2]
    return f"{known} {other}" if act.agent == "left" else f"{other} {known}"


@pytest.mark.parametrize(
    ("left", "right", "reward"),
    [
        ("c f 4 2", "c f 4 2", 1.0),
        ("c f 4 2", "stay", 0.4),
        ("stay", "stay", 0.1),
        ("c f", "4 2", 0.0),
        ("c f 4 1", "c f 4 1", 0.0),
    ],
)
def test_the_joint_reward(left: str, right: str, reward: float) -> None:
    assert Rendezvous().score(PLACE, {"left": left, "right": right}) == reward


def test_both_see_both_moves_and_meet() -> None:
    run = check_workflow(Meet(), PLACE, ScriptedPolicy({"left": goes, "right": goes}))
    assert run.answer == {"left": "c f 4 2", "right": "c f 4 2"}
    assert run.proposals == [{"left": "c f", "right": "4 2"}, run.answer]
    assert [act.joint for act, _ in run.turns] == [0, 0, 1, 1]
    assert not run.invalid


def test_what_cannot_be_read_is_marked() -> None:
    run = check_workflow(Meet(turns=1), PLACE, ScriptedPolicy({"left": "know", "right": "stay"}))
    assert list(run.invalid) == [("left", "0")]
