"""Rendezvous: the task, its workflow, and the advantages of the method and its baselines."""

import asyncio
from typing import Any

import pytest
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_magrpo.rendezvous import Meet, Rendezvous
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm

from marl_verl import Task
from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.sampling import Sample
from marl_verl.episode import Act
from marl_verl.options import build

PLACE = Task("p", "meet at c f 4 2", {"letters": ["c", "f"], "digits": ["4", "2"]})
TASKS = Rendezvous()


def goes(act: Act) -> str:
    """Sends its half, then goes to the place that both halves give."""
    known, _, heard = shown(act).removeprefix("know ").partition(" said ")
    if not heard:
        return known
    other = heard.rpartition(" heard ")[2]
    return f"{known} {other}" if act.agent == "left" else f"{other} {known}"


def branching(act: Act, session: int, candidate: Any) -> str:
    """Even samples tell and go; of the odd ones the left agent stays, and the right one stays at the first turn."""
    last = int(str(candidate).rpartition(".")[2])
    heard_all = "stay" not in shown(act)
    if last % 2 == 0 and heard_all:
        return goes(act)
    return "stay" if act.agent == "left" or act.turn == 0 or not heard_all else goes(act)


BRANCHING = ScriptedPolicy({"left": branching, "right": branching})


def sampled(joint_actions: int = 2, **options: Any) -> Sample:
    context = ScriptedContext(Meet(), PLACE, BRANCHING, tasks=TASKS)
    return asyncio.run(build(JointTree, {"joint_actions": joint_actions, **options}, "sampler").sample(context))


def advantages(sample: Sample, name: str = "magrpo", **options: Any) -> tuple[RowTable, AdvantageResult]:
    table = RowTable.from_rows([row(turn) for turn in sample.turns])
    return table, algorithm(name, **options).compute(table)


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
    assert TASKS.score(PLACE, {"left": left, "right": right}) == reward


def test_both_see_both_moves_and_meet() -> None:
    run = check_workflow(Meet(), PLACE, ScriptedPolicy({"left": goes, "right": goes}))
    assert run.answer == {"left": "c f 4 2", "right": "c f 4 2"}
    assert run.proposals == [{"left": "c f", "right": "4 2"}, run.answer]
    assert [act.joint for act, _ in run.turns] == [0, 0, 1, 1]
    assert not run.invalid


# the method on it


def test_the_tree_credits_sending_by_its_later_reward() -> None:
    """Joint action 0 tells, then its branches earn 1 and 0.4; joint action 1 stays, and so do its branches."""
    found = sampled()
    table, result = advantages(found)
    got = {(str(turn.node), turn.agent): at for at, turn in enumerate(found.turns)}
    reward, ret = ({key: float(values[at]) for key, at in got.items()} for values in (result.reward, result.ret))
    assert [reward[node, "left"] for node in ("0", "1", "0.0", "0.1", "1.0", "1.1")] == [0, 0.1, 1, 0.4, 0.1, 0.1]
    assert ret["0", "left"] == ret["0", "right"] == pytest.approx(0.7)
    assert ret["1", "left"] == pytest.approx(0.2)
    advantage = {key: float(result.advantage[at]) for key, at in got.items()}
    assert advantage["0", "left"] == pytest.approx(0.25)
    assert advantage["1", "right"] == pytest.approx(-0.25)
    assert advantage["0.0", "right"] == pytest.approx(0.3)  # against 0.1 only, which started from the same state
    assert advantage["1.0", "left"] == advantage["1.1", "left"] == 0.0
    assert {frozenset(table.node.value(int(at)) for at in result.members(got["0.0", "left"]))} == {
        frozenset({"0.0", "0.1"})
    }


def test_without_returns_staying_wins_the_first_turn() -> None:
    found = sampled()
    _, result = advantages(found, gamma=0.0)
    first = {(str(turn.node), turn.agent): float(a) for turn, a in zip(found.turns, result.advantage, strict=True)}
    assert first["0", "left"] < 0 < first["1", "left"]


def test_what_cannot_be_read_is_marked() -> None:
    run = check_workflow(Meet(turns=1), PLACE, ScriptedPolicy({"left": "know", "right": "stay"}))
    assert list(run.invalid) == [("left", "0")]
