"""Rendezvous: the task, its workflow, and the advantages of the method and its baselines."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_magrpo.joint_turns import JointTurns
from marl_verl_magrpo.rendezvous import Meet, Rendezvous, joint_reward, place_of, seen_as, sees
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_algorithm, check_sampler, check_workflow, shown
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm

from marl_verl import MarlError, Task
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


# the task


def test_no_held_out_place_is_in_train_for_any_seed() -> None:
    train = {task.id for seed in range(3) for task in TASKS.generate("train", 2000, seed)}
    test = {task.id for seed in range(3) for task in TASKS.generate("test", 300, seed)}
    assert not train & test
    assert len(TASKS.generate("test", 300, 0)) == len({task.id for task in TASKS.generate("test", 300, 0)}) == 300
    assert TASKS.generate("train", 20, 5) == TASKS.generate("train", 20, 5)


def test_there_are_only_so_many_places() -> None:
    with pytest.raises(MarlError, match=r"rendezvous: found only \d+ of 200 different test tasks"):
        Rendezvous(length=1).generate("test", 200, 0)
    with pytest.raises(MarlError, match="length must be 1 to 4, got 5"):
        Rendezvous(length=5)


@pytest.mark.parametrize(
    ("left", "right", "reward"),
    [
        ("c f 4 2", "c f 4 2", 1.0),
        ("c f 4 2", "stay", 0.4),
        ("c f 4 1", "c f 4 2", 0.4),
        ("stay", "stay", 0.1),
        ("c f", "4 2", 0.0),
        ("stay", "4 2", 0.0),
        ("c f 4 1", "c f 4 1", 0.0),
        ("", "stay", 0.0),
    ],
)
def test_the_joint_reward(left: str, right: str, reward: float) -> None:
    moves = {"left": left, "right": right}
    assert joint_reward(PLACE, moves) == TASKS.score(PLACE, moves) == reward


def test_sending_pays_only_later_and_staying_now() -> None:
    halves, stayed = {"left": "c f", "right": "4 2"}, {"left": "stay", "right": "stay"}
    assert TASKS.score(PLACE, halves) < TASKS.score(PLACE, stayed)


def test_the_public_score_does_not_need_the_place() -> None:
    assert TASKS.public_score(PLACE, {"left": "a a 1 1", "right": "a a 1 1"}) == 1.0
    assert TASKS.public_score(PLACE, {"left": "a a 1 1", "right": "stay"}) == 0.5
    assert TASKS.public_score(PLACE, {"left": "c f", "right": "c f"}) == 0.0


@pytest.mark.parametrize("answer", ["c f 4 2", {}, {"left": 1}, None])
def test_another_answer_is_a_mistake(answer: Any) -> None:
    with pytest.raises(MarlError, match="rendezvous scores a joint move, agent -> text, got"):
        TASKS.score(PLACE, answer)


@pytest.mark.parametrize("agent", ["left", "right", "alone"])
def test_demonstrations_are_of_training_places_in_words_of_the_vocabulary(agent: str) -> None:
    words = set(TASKS.vocabulary())
    held_out = [place_of(task) for task in TASKS.generate("test", 300, 0)]
    pairs = TASKS.demonstrations(agent, 500, 0, 0.3)
    assert len(pairs) == 500
    for seen, answer in pairs:
        assert set(seen.split()) | set(answer.split()) <= words
        assert seen_as(PLACE, answer) == answer
        if agent == "alone":
            assert seen.split()[1:5] not in held_out


def test_good_demonstrations_send_and_then_meet() -> None:
    for agent in ("left", "right"):
        for seen, answer in TASKS.demonstrations(agent, 200, 1, 1.0):
            known, _, rest = seen.removeprefix("know ").partition(" said ")
            heard = rest.rpartition(" heard ")[2]
            if heard in ("", "stay", "nothing"):
                assert answer == known
            else:
                other = heard if len(heard.split()) == 2 else None
                assert answer == (
                    heard if other is None else f"{known} {other}" if agent == "left" else f"{other} {known}"
                )
    share = sum(answer == "stay" for _, answer in TASKS.demonstrations("left", 2000, 1, 0.3)) / 2000
    assert 0.58 < share < 0.68  # 0.7 * 0.9


def test_an_unknown_agent_has_no_demonstrations() -> None:
    with pytest.raises(MarlError, match=r"unknown agent of rendezvous 'lefty': did you mean 'left'\?"):
        TASKS.demonstrations("lefty", 1, 0, 0.5)


# the workflow


def test_both_see_both_moves_and_meet() -> None:
    run = check_workflow(Meet(), PLACE, ScriptedPolicy({"left": goes, "right": goes}))
    assert run.answer == {"left": "c f 4 2", "right": "c f 4 2"}
    assert run.proposals == [{"left": "c f", "right": "4 2"}, run.answer]
    assert [act.joint for act, _ in run.turns] == [0, 0, 1, 1]
    assert not run.invalid


def test_neither_sees_the_other_half_before_it_is_sent() -> None:
    assert sees(PLACE, "left", None) == "know c f"
    assert sees(PLACE, "right", {"left": "stay", "right": "4 2"}) == "know 4 2 said 4 2 heard stay"
    assert sees(PLACE, "right", {"left": "f c 9 9 9", "right": "4 c"}) == "know 4 2 said nothing heard nothing"
    assert sees(PLACE, "alone", None) == "know c f 4 2"


def test_what_cannot_be_read_is_marked() -> None:
    run = check_workflow(Meet(turns=1), PLACE, ScriptedPolicy({"left": "know", "right": "stay"}))
    assert list(run.invalid) == [("left", "0")]


def test_one_alone_moves_for_both() -> None:
    run = check_workflow(Meet(turns=1), PLACE, ScriptedPolicy({"alone": "c f 4 2"}))
    assert TASKS.score(PLACE, run.answer) == 1.0


def test_other_teams_raise() -> None:
    with pytest.raises(MarlError, match=r"rendezvous needs the agents 'left' and 'right', or 'alone': got left"):
        check_workflow(Meet(), PLACE, ScriptedPolicy({"left": "stay"}))
    with pytest.raises(MarlError, match="turns must be at least 1, got 0"):
        Meet(turns=0)


# the method on it


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_the_sampler_keeps_its_promises_on_it(joint: str) -> None:
    sampler = build(JointTree, {"joint_actions": 2, "joint": joint}, "sampler")
    sample = check_sampler(sampler, Meet(), PLACE, BRANCHING, tasks=TASKS)
    assert len(sample.turns) == {"aligned": 2 * (2 + 4), "cross": 2 * 2 + 4 * 2 * 2}[joint]
    rows = [row(turn) for turn in sample.turns]
    check_algorithm(algorithm("magrpo", **{"joint_mode": joint}), rows, reach="task")


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


def test_episodes_are_the_tree_that_branches_at_the_root_only() -> None:
    found = sampled(joint_actions=4, max_nodes=4)
    assert [str(turn.node) for turn in found.turns if turn.agent == "left"] == [
        name for j in range(4) for name in (f"{j}", f"{j}.0")
    ]
    table, result = advantages(found, group=["uid", "turn", "agent", "slot"])
    assert len(set(result.group.tolist())) == 4  # two turns, two agents
    last = [at for at in range(len(table)) if table.turn[at] == 1 and table.agent.value(at) == "left"]
    assert sorted(result.members(last[0]).tolist()) == last  # other states: what the other episodes came to
    _, result = advantages(found, group=["uid"], gamma=0.0, normalize=True)
    assert len(set(result.group.tolist())) == 1


def test_the_metric_has_reward_return_and_spread_per_turn() -> None:
    table, result = advantages(sampled())
    logged = JointTurns().of_rows(table, result)
    assert logged == pytest.approx(
        {
            "magrpo/turn_0/return": 0.45,
            "magrpo/turn_0/reward": 0.05,
            "magrpo/turn_0/groups": 2,
            "magrpo/turn_0/spread": 0.25,
            "magrpo/turn_1/return": 0.4,
            "magrpo/turn_1/reward": 0.4,
            "magrpo/turn_1/groups": 4,
            "magrpo/turn_1/spread": 0.15,
        }
    )


def test_the_metric_leaves_out_the_spread_of_rows_without_siblings() -> None:
    table, result = advantages(sampled(joint_actions=4, max_nodes=4))
    logged = JointTurns().of_rows(table, result)
    assert logged["magrpo/turn_1/groups"] == 0
    assert "magrpo/turn_1/spread" not in logged
    assert "magrpo/turn_0/spread" in logged


def test_the_metric_has_both_turns_of_a_common_group() -> None:
    table, result = advantages(sampled(joint_actions=4, max_nodes=4), group=["uid"])
    logged = JointTurns().of_rows(table, result)
    assert logged["magrpo/turn_0/groups"] == logged["magrpo/turn_1/groups"] == 1
    assert logged["magrpo/turn_0/spread"] == logged["magrpo/turn_1/spread"] == pytest.approx(float(np.std(result.ret)))
