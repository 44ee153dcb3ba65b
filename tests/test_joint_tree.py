"""The joint tree of MAGRPO: every joint action goes on, returns follow the branches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_verl.advantage import Advantages, RowTable
from marl_verl.advantage.tree import JOIN as JOINED
from marl_verl.episode import Act, Action, Episode, Limits, LiveTeam, Turn, Workflow
from marl_verl.episode.row import row
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.parts import algorithm_named
from marl_verl.sampling import Sample
from marl_verl.sampling.joint_tree import JOIN, JointTree, Size
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.testing import ScriptedPolicy, ScriptedRollouts
from tests.workflows import (
    TASK,
    Call,
    Hashed,
    Joint,
    Lanes,
    Mark,
    Programmed,
    Solo,
    eighth,
    own_words,
    talkers,
    workflows,
)


class Writers(Workflow):
    """Two writers at once, turn by turn; after every turn they propose what they have."""

    turns: int = 2
    proposes: bool = True

    async def run(self, task: Task, team: LiveTeam) -> str:
        said = task.prompt
        for _ in range(self.turns):
            parts = await team.act({"one": f"{said} (one)", "two": f"{said} (two)"})
            said += f" [{parts['one'].text} {parts['two'].text}]"
            if self.proposes:
                team.propose(said)
        return said


def numbered(act: Act, session: int, candidate: Any) -> str:
    """Action k of the first writer is "a{k}", of the second "b{k}"."""
    return f"{'a' if act.agent == 'one' else 'b'}{candidate.rpartition('.')[2]}"


NUMBERED = ScriptedPolicy({"one": numbered, "two": numbered})
Q = Task("q", "write:")
TALKERS = talkers(agents=("one", "two"))


def tree(
    workflow: Workflow, policy: ScriptedPolicy = NUMBERED, k: int = 2, options: Any = None, **how: Any
) -> tuple[Sample, ScriptedRollouts]:
    given: dict[str, Any] = {"tasks": Hashed(), "rollouts": ScriptedRollouts} | how
    rollouts = given.pop("rollouts")(workflow, given.pop("task", Q), policy, sessions=k, **given)

    async def go() -> Sample:
        found = await build(JointTree, options, "sampler").sample(rollouts)
        assert len(asyncio.all_tasks()) == 1  # nothing is left running
        return found

    return asyncio.run(go()), rollouts


def said(turn: Turn) -> tuple[Any, ...]:
    return turn.index, turn.node, turn.parent, turn.agent, turn.turn, turn.action.text


def worth(answer: str) -> float:
    return eighth("score", "q", answer)


# aligned


def test_aligned_every_joint_action_spawns_a_child() -> None:
    found, rollouts = tree(Writers())
    assert [said(turn) for turn in found.turns] == [
        (0, "0", None, "one", 0, "a0"),
        (1, "0", None, "two", 0, "b0"),
        (2, "0.0", "0", "one", 1, "a0"),
        (3, "0.0", "0", "two", 1, "b0"),
        (4, "0.1", "0", "one", 1, "a1"),
        (5, "0.1", "0", "two", 1, "b1"),
        (6, "1", None, "one", 0, "a1"),
        (7, "1", None, "two", 0, "b1"),
        (8, "1.0", "1", "one", 1, "a0"),
        (9, "1.0", "1", "two", 1, "b0"),
        (10, "1.1", "1", "one", 1, "a1"),
        (11, "1.1", "1", "two", 1, "b1"),
    ]
    assert found.turns[8].observation[-1]["content"] == "write: [a1 b1] (one)"
    answers = [f"write: [a{i} b{i}] [a{j} b{j}]" for i in range(2) for j in range(2)]
    assert [(e.id, e.answer, e.finished) for e in found.episodes] == [
        (f"q_0_{name}", answer, True) for name, answer in zip(["0.0", "0.1", "1.0", "1.1"], answers, strict=True)
    ]
    assert [[turn.index for turn in e.turns] for e in found.episodes] == [
        [0, 1, 2, 3],
        [0, 1, 4, 5],
        [6, 7, 8, 9],
        [6, 7, 10, 11],
    ]
    assert [e.score for e in found.episodes] == [worth(answer) for answer in answers]
    assert {turn.node: turn.rewards for turn in found.turns} == {
        **{str(i): {"team": worth(f"write: [a{i} b{i}]")} for i in range(2)},
        **{f"{i}.{j}": {"team": worth(answers[2 * i + j])} for i in range(2) for j in range(2)},
    }
    assert len(rollouts.asked) == 12
    assert not found.extra_tokens


def test_a_turn_without_a_new_proposal_earns_nothing() -> None:
    found, _ = tree(Writers(proposes=False))
    assert [turn.rewards["team"] for turn in found.turns if turn.parent is None] == [0.0] * 4

    class Once(Writers):
        async def run(self, task: Task, team: LiveTeam) -> str:
            team.propose("before anything")
            first = await team["one"].act(task.prompt)
            team.propose(first.text)
            await team["two"].act("look at it")
            return (await team["one"].act("again")).text

    found, _ = tree(Once(), k=1)
    assert [turn.rewards["team"] for turn in found.turns] == [worth("a0"), 0.0, worth("a0")]


def by_hand(found: Sample, gamma: float) -> dict[str, float]:
    """R_j = r_j + gamma * mean over the children's R, written out over the rows of an aligned tree."""
    reward = {str(turn.node): turn.rewards["team"] for turn in found.turns}
    above = {turn.node: turn.parent for turn in found.turns}

    def ret(node: str) -> float:
        below = [ret(child) for child in reward if above[child] == node]
        return reward[node] + (gamma * sum(below) / len(below) if below else 0.0)

    return {node: ret(node) for node in reward}


def magrpo(found: Sample, **options: Any) -> Advantages:
    method = algorithm_named("magrpo", {"returns": "tree_mean", "group": ["uid", "parent", "agent"], **options}, "test")
    return method.compute(RowTable.from_rows([row(turn) for turn in found.turns]))


@given(workflow=workflows(failing=True, acts=5), seed=st.integers(0, 99), k=st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_magrpo_on_an_aligned_tree_is_the_papers_recursion(workflow: Programmed, seed: int, k: int) -> None:
    found, _ = tree(workflow, talkers(seed), k, task=TASK)
    if not found.turns:
        return
    result, wanted = magrpo(found, gamma=0.5), by_hand(found, 0.5)
    for i, turn in enumerate(found.turns):
        siblings = [t for t in found.turns if (t.parent, t.agent) == (turn.parent, turn.agent)]
        baseline = np.mean([wanted[str(t.node)] for t in siblings])
        assert result.ret[i] == pytest.approx(wanted[str(turn.node)], abs=1e-12)
        assert result.advantage[i] == pytest.approx(wanted[str(turn.node)] - baseline, abs=1e-12)


# crossed


def test_crossed_an_action_is_one_row_with_the_sum_over_its_joint_actions() -> None:
    found, rollouts = tree(Writers(turns=1), k=3, options={"joint": "cross"})
    assert len(rollouts.asked) == 6
    assert [said(turn) for turn in found.turns] == [
        (0, "0+1+2", None, "one", 0, "a0"),
        (1, "3+4+5", None, "one", 0, "a1"),
        (2, "6+7+8", None, "one", 0, "a2"),
        (3, "0+3+6", None, "two", 0, "b0"),
        (4, "1+4+7", None, "two", 0, "b1"),
        (5, "2+5+8", None, "two", 0, "b2"),
    ]
    joint = [worth(f"write: [a{i} b{j}]") for i in range(3) for j in range(3)]
    sums = [sum(joint[int(name)] for name in str(turn.node).split("+")) for turn in found.turns]
    assert [turn.rewards["team"] for turn in found.turns] == sums
    assert [[turn.index for turn in e.turns] for e in found.episodes] == [
        [i, 3 + j] for i in range(3) for j in range(3)
    ]
    assert [e.score for e in found.episodes] == joint
    assert JOIN == JOINED


def test_crossed_magrpo_is_the_recursion_over_joint_actions() -> None:
    found, rollouts = tree(Writers(), TALKERS, options={"joint": "cross"})
    assert len(rollouts.asked) == 4 + 4 * 4
    assert len(found.episodes) == 16
    result = magrpo(found, gamma=0.5, joint_mode="cross")
    text = {(turn.agent, name): turn.action.text for turn in found.turns for name in str(turn.node).split("+")}
    answer = {name: f"write: [{text['one', name]} {text['two', name]}]" for _, name in text if "." not in name}
    for name in [name for _, name in text if "." in name]:
        answer[name] = f"{answer[name[0]]} [{text['one', name]} {text['two', name]}]"

    def ret(name: str) -> float:
        below = [] if "." in name else [ret(f"{name}.{j}") for j in range(4)]
        return worth(answer[name]) + (0.5 * sum(below) / 4 if below else 0.0)

    for i, turn in enumerate(found.turns):
        assert result.ret[i] == pytest.approx(sum(ret(name) for name in str(turn.node).split("+")), abs=1e-12)


@given(workflow=workflows(proposing=True, acts=4), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_one_act_at_a_time_crossed_is_aligned(workflow: Programmed, seed: int) -> None:
    program = Programmed(tuple(step for step in workflow.program if not isinstance(step, Joint | Lanes)))
    program = Programmed((*program.program, Solo("solver")))
    aligned, _ = tree(program, talkers(seed), task=TASK)
    cross, _ = tree(program, talkers(seed), task=TASK, options={"joint": "cross"})
    key = ("node", "parent", "agent", "turn", "observation", "action", "rewards")
    assert sorted(repr([getattr(t, name) for name in key]) for t in aligned.turns) == sorted(
        repr([getattr(t, name) for name in key]) for t in cross.turns
    )


def test_lanes_are_a_joint_node_and_no_lane_sees_another() -> None:
    program = Programmed((Lanes("solver", (1, 2)), Solo("critic")))
    found, _ = tree(program, talkers(), task=TASK)
    first = [turn for turn in found.turns if turn.parent is None]
    assert [(turn.slot, turn.node) for turn in first] == [(f"lane1at{i}", str(j)) for j in range(2) for i in range(2)]
    second = [turn for turn in found.turns if turn.parent == "0"]
    assert [turn.slot for turn in second] == ["lane1at1#1"] * 2  # the other lane has ended
    assert {turn.agent for turn in found.turns if str(turn.node).count(".") == 2} == {"critic"}


def test_role_rewards_are_of_each_joint_action_and_sum_where_crossed() -> None:
    def together(task: Task, turn: Turn, episode: Episode) -> float:
        mate = next(t for t in episode.turns if t.agent != turn.agent)
        return float(turn.action.text[1] + mate.action.text[1])

    found, _ = tree(Writers(turns=1), rewards={"two": together})
    assert [turn.rewards.get("role") for turn in found.turns] == [None, 0, None, 11]
    found, _ = tree(Writers(turns=1), rewards={"two": together}, options={"joint": "cross"})
    assert [turn.rewards.get("role") for turn in found.turns] == [None, None, 0 + 1, 10 + 11]


def test_an_action_is_of_no_use_where_it_was_in_all_its_joint_actions() -> None:
    class Strict(Writers):
        async def run(self, task: Task, team: LiveTeam) -> str:
            parts = await team.act({"one": "1", "two": "2"})
            if parts["one"].text == "a0":
                team.invalid(parts["one"], "no a0")
                team.invalid(parts["two"], "not beside a0")
            return parts["one"].text

    found, _ = tree(Strict(), options={"joint": "cross"})
    assert [turn.invalid for turn in found.turns] == ["no a0", None, None, None]
    found, _ = tree(Strict())
    assert [turn.invalid for turn in found.turns] == ["no a0", "not beside a0", None, None]


# stopping


@pytest.mark.parametrize(("above", "nodes"), [(0.4, 2), (0.5, 6), (None, 6)])
def test_a_branch_stops_where_its_node_is_good_enough_on_average(above: float | None, nodes: int) -> None:
    class First(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float("a1" in answer)

    found, rollouts = tree(Writers(), options={"stop_above": above}, tasks=First())
    assert len({turn.node for turn in found.turns}) == nodes
    assert len(rollouts.asked) == 2 * nodes
    if nodes == 2:
        assert [(e.id, e.finished, e.score, e.answer) for e in found.episodes] == [
            ("q_0_0", False, 0.0, "write: [a0 b0]"),
            ("q_0_1", False, 1.0, "write: [a1 b1]"),
        ]


def test_every_branch_stops_by_itself() -> None:
    class Deep(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float(answer.startswith("write: [a1 b1] ["))

    found, _ = tree(Writers(turns=3), options={"stop_above": 0.9}, tasks=Deep())
    names = {str(turn.node) for turn in found.turns}
    assert {name for name in names if name.startswith("1")} == {"1", "1.0", "1.1"}  # all good below 1: leaves
    assert len([name for name in names if name.startswith("0")]) == 1 + 2 + 4


@pytest.mark.parametrize(
    ("limit", "cross", "widths"),
    [
        (64, False, [3, 9, 27, 27]),  # 3 + 9 + 27 = 39; 27 * 1 is left, 27 * 2 is not
        (20, False, [3, 9, 9, 9]),  # nothing is left after 3 + 9 = 12 but 8: unbranched
        (1, False, [1, 1, 1, 1]),
        (64, True, [9, 36, 36, 36]),  # 9 * 4 <= 55
        (8, True, [4, 4, 4, 4]),
    ],
)
def test_a_tree_has_no_more_joint_actions_than_it_may_and_every_path_goes_on(
    limit: int, cross: bool, widths: list[int]
) -> None:
    options = {"max_nodes": limit, "joint": "cross" if cross else "aligned"}
    found, _ = tree(Writers(turns=4), TALKERS, k=3, options=options)
    nodes = {name for turn in found.turns for name in str(turn.node).split("+")}
    assert [sum(name.count(".") == depth for name in nodes) for depth in range(4)] == widths
    assert all(episode.finished for episode in found.episodes)


@given(most=st.integers(1, 9), power=st.integers(1, 4), limit=st.integers(1, 200), width=st.integers(1, 50))
def test_the_branching_is_the_largest_that_fits(most: int, power: int, limit: int, width: int) -> None:
    k = Size(width, 0).branching(most, power, limit)
    fits = [n for n in range(1, most + 1) if width * n**power <= limit]
    assert k == (max(fits) if fits else 1)


# what fails, and when


class Broken(ScriptedRollouts):
    """Requests that fail, by act and name."""

    fails: Callable[[Act, str], bool] = staticmethod(lambda act, name: False)

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if self.fails(act, candidate):
            raise ConnectionError("no server")
        return await super().act(act, session, candidate, agent)


class OneFails(Broken):
    fails = staticmethod(lambda act, name: (act.agent, name) == ("two", "1"))


def test_an_action_that_fails_takes_its_joint_actions_with_it_and_is_told_once() -> None:
    found, _ = tree(Writers(turns=1), k=3, rollouts=OneFails)
    assert [turn.node for turn in found.turns] == ["0", "0", "2", "2"]
    assert [turn.index for turn in found.turns] == [0, 1, 2, 3]
    assert [(failure.session, failure.reason) for failure in found.failures] == [(0, "policy-error")]
    found, _ = tree(Writers(turns=1), k=3, rollouts=OneFails, options={"joint": "cross"})
    assert [said(turn)[1] for turn in found.turns] == ["0+2", "3+5", "6+8", "0+3+6", "2+5+8"]
    assert len(found.failures) == 1
    assert len(found.episodes) == 6
    joint = {f"{3 * i + j}": worth(f"write: [a{i} b{j}]") for i in range(3) for j in range(3)}
    assert found.turns[0].rewards == {"team": joint["0"] + joint["2"]}
    magrpo(found, joint_mode="cross")  # what is left is a tree


def test_a_joint_action_that_fails_is_missing_in_names_and_sums() -> None:
    class Picky(Writers):
        async def run(self, task: Task, team: LiveTeam) -> str:
            answer = await super().run(task, team)
            if "[a0 b1]" in answer or "a1" in answer:
                raise ValueError("cannot be read")
            return str(answer)

    found, _ = tree(Picky(turns=1), options={"joint": "cross"})
    assert [said(turn)[1:] for turn in found.turns] == [("0", None, "one", 0, "a0"), ("0", None, "two", 0, "b0")]
    assert [failure.reason for failure in found.failures] == ["workflow-error"] * 3


def test_where_everything_below_fails_the_path_ends() -> None:
    class Later(Broken):
        fails = staticmethod(lambda act, name: name.startswith("1.") or name == "0.1")

    found, _ = tree(Writers(), rollouts=Later)
    assert [turn.node for turn in found.turns] == ["0", "0", "0.0", "0.0", "1", "1"]
    assert [(e.id, e.finished) for e in found.episodes] == [("q_0_0.0", True), ("q_0_1", False)]
    assert len(found.failures) == 2 + 4  # actions that did not come

    class Nobody(Broken):
        fails = staticmethod(lambda act, name: True)

    found, _ = tree(Writers(), rollouts=Nobody)
    assert (found.episodes, len(found.failures)) == ([], 4)


def test_a_workflow_that_cannot_begin_fails_every_joint_action() -> None:
    class Stillborn(Workflow):
        async def run(self, task: Task, team: LiveTeam) -> str:
            raise ValueError("nothing to do")

    found, _ = tree(Stillborn(), k=3)
    assert [failure.reason for failure in found.failures] == ["workflow-error"] * 3


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_an_action_that_takes_too_long_is_told_once(joint: str) -> None:
    class Slow(ScriptedRollouts):
        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            if (act.agent, candidate) == ("two", "1"):
                await asyncio.sleep(60)
            return await super().act(act, session, candidate, agent)

    limits = Limits(episode_seconds=0.2)
    found, _ = tree(Writers(turns=1), rollouts=Slow, limits=limits, options={"joint": joint})
    assert [failure.reason for failure in found.failures] == ["timeout"]
    assert len(found.episodes) == {"aligned": 1, "cross": 2}[joint]


def test_no_branch_waits_for_another() -> None:
    finished: list[str] = []

    class Watched(ScriptedRollouts):
        """Branch 0's second move is never reached before branch 1 is done with everything."""

        done: asyncio.Event

        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            if candidate == "0":
                await asyncio.wait_for(self.done.wait(), 30)
            return await super().act(act, session, candidate, agent)

        async def state(self, run: Any, session: int, turns: Any, answer: Any) -> Episode:
            finished.append(str(turns[-1].node))
            if set(finished) >= {
                "1",
                *(f"1.{i}" for i in range(2)),
                *(f"1.{i}.{j}" for i in range(2) for j in range(2)),
            }:
                self.done.set()
            return await super().state(run, session, turns, answer)

    rollouts = Watched(Writers(turns=3), Q, TALKERS, sessions=2, tasks=Hashed())

    async def go() -> Sample:
        rollouts.done = asyncio.Event()
        return await JointTree().sample(rollouts)

    found = asyncio.run(go())
    assert len(found.episodes) == 8
    assert not found.failures
    assert finished.index("0") == 7


def test_names_of_ten_and_more_are_in_the_order_of_numbers() -> None:
    found, _ = tree(Writers(turns=1), TALKERS, k=12)
    assert [turn.node for turn in found.turns] == [str(j) for j in range(12) for _ in range(2)]
    assert [episode.id for episode in found.episodes] == [f"q_0_{j}" for j in range(12)]


def test_calls_and_marks_on_the_way() -> None:
    program = Programmed((Joint(("solver", "critic")), Call("solver"), Mark("propose"), Solo("solver")))
    found, rollouts = tree(program, talkers(), task=TASK, rewards={"solver": own_words})
    assert len(found.turns) == 2 * 2 + 4
    assert len(rollouts.asked) == 8


def test_options_are_checked() -> None:
    with pytest.raises(MarlError, match="'max_nodes' must be at least 1, got 0"):
        build(JointTree, {"max_nodes": 0}, "sampler")
    with pytest.raises(MarlError, match=r"'sampler.joint' must be one of 'aligned', 'cross'.*did you mean 'cross'"):
        build(JointTree, {"joint": "crossed"}, "sampler")
    assert build(JointTree, {"stop_above": 1}, "sampler").stop_above == 1
