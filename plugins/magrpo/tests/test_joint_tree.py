"""The joint tree of MAGRPO: every joint action goes on, returns follow the branches."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_magrpo.joint_node import product_of
from marl_verl_magrpo.joint_tree import JointTree, Size
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm
from marl_verl_testing.workflows import (
    TASK,
    Call,
    Hashed,
    Joint,
    Lanes,
    Mark,
    Programmed,
    Solo,
    eighth,
    number,
    own_words,
    talkers,
    workflows,
)

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.sampling import Sample
from marl_verl.episode import Act, Action, Episode, Limits, Reason, Team, Turn, Workflow
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.tasks.base import Task, TaskSet


class Writers(Workflow):
    """Two writers act jointly in each turn; after every turn they propose their text."""

    turns: int = 2
    proposes: bool = True

    async def run(self, task: Task, team: Team) -> str:
        history = task.prompt
        for _ in range(self.turns):
            parts = await team.act({"one": f"{history} (one)", "two": f"{history} (two)"})
            history += f" [{parts['one'].text} {parts['two'].text}]"
            if self.proposes:
                team.propose(history)
        return history


def numbered(act: Act, session: int, candidate: Any) -> str:
    """Action k of the first writer is "a{k}", of the second "b{k}"."""
    return f"{'a' if act.agent == 'one' else 'b'}{candidate.rpartition('.')[2]}"


NUMBERED = ScriptedPolicy({"one": numbered, "two": numbered})
Q = Task("q", "write:")
TALKERS = talkers(agents=("one", "two"))


def tree(
    workflow: Workflow, policy: ScriptedPolicy = NUMBERED, k: int = 2, options: Any = None, **how: Any
) -> tuple[Sample, ScriptedContext]:
    given: dict[str, Any] = {"tasks": Hashed(), "context": ScriptedContext} | how
    context = given.pop("context")(workflow, given.pop("task", Q), policy, **given)

    async def go() -> Sample:
        found = await build(JointTree, {"joint_actions": k, **(options or {})}, "sampler").sample(context)
        assert len(asyncio.all_tasks()) == 1  # nothing is left running
        return found

    return asyncio.run(go()), context


def row_of(turn: Turn) -> tuple[Any, ...]:
    return turn.index, turn.node, turn.parent, turn.agent, turn.turn, turn.action.text


def worth(answer: str) -> float:
    return eighth("score", "q", answer)


# aligned


def test_aligned_every_joint_action_spawns_a_child() -> None:
    found, context = tree(Writers())
    assert [row_of(turn) for turn in found.turns] == [
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
    assert len(context.asked) == 12
    assert not found.extra_tokens


def test_a_turn_without_a_new_proposal_earns_nothing() -> None:
    found, _ = tree(Writers(proposes=False))
    assert [turn.rewards["team"] for turn in found.turns if turn.parent is None] == [0.0] * 4

    class Once(Writers):
        async def run(self, task: Task, team: Team) -> str:
            team.propose("before anything")
            first = await team["one"].act(task.prompt)
            team.propose(first.text)
            await team["two"].act("look at it")
            return (await team["one"].act("again")).text + "!"

    found, _ = tree(Once(), k=1)
    assert [turn.rewards["team"] for turn in found.turns] == [worth("a0"), 0.0, worth("a0!")]


class Verified(Workflow):
    """A writer and a verifier, until it accepts; at most three rounds."""

    first: str = ""
    listed: bool = False

    async def run(self, task: Task, team: Team) -> Any:
        if self.first:
            team.propose(self.first)
        for at in range(3):
            text = self.first or (await team["one"].act(f"{task.prompt} {at}")).text
            draft: Any = [text] if self.listed else text
            if not self.first:
                team.propose(draft)
            if (await team["two"].act(f"{text} {at}")).text == "b0":
                break
        return list(draft) if self.listed else draft


def ones(found: Sample) -> dict[str, float]:
    return {str(turn.node): turn.rewards["team"] for turn in found.turns}


def test_an_answer_that_was_proposed_before_counts_once() -> None:
    found, _ = tree(Verified(), tasks=None)
    # a draft is worth 1, whoever accepts it earns nothing, nor does who sends it back, nor the last, accepting or not
    assert set(ones(found)) >= {"0", "0.0", "0.1", "0.1.0", "0.1.0.1.0.0"}
    assert {name for name, reward in ones(found).items() if reward} == {
        name for name in ones(found) if name.count(".") % 2 == 0
    }
    assert set(ones(found).values()) == {0.0, 1.0}
    assert {(e.score, e.success, e.finished) for e in found.episodes} == {(1.0, True, True)}
    assert {episode.answer for episode in found.episodes} == {"a0", "a1"}
    role = tree(Verified(), tasks=None, rewards={"two": lambda task, turn, episode: episode.score})[0]
    ends = [episode.turns[-1].rewards for episode in role.episodes]
    assert ends == [{"team": 0.0, "role": 1.0}] * len(ends)  # it alone counts anew: a role reward is of the state


def test_an_answer_that_no_joint_action_proposed_counts_at_the_end() -> None:
    found, _ = tree(Verified(first="before anything"), k=1, tasks=None)
    assert ones(found) == {"0": 1.0}


def test_equal_answers_are_one_and_those_that_cannot_be_compared_fail_by_themselves() -> None:
    found, _ = tree(Verified(listed=True), k=1, tasks=None)
    assert ones(found) == {"0": 1.0, "0.0": 0.0}

    class Arrays(Verified):
        async def run(self, task: Task, team: Team) -> Any:
            draft = np.zeros(2)
            text = (await team["one"].act("draft")).text
            team.propose(draft)
            verdict = (await team["two"].act(text)).text
            return draft if verdict == "b0" else np.zeros(2)

    found, _ = tree(Arrays(), tasks=None)
    assert ones(found) == {"0": 1.0, "0.0": 0.0, "1": 1.0, "1.0": 0.0}
    assert [failure.reason for failure in found.failures] == ["score-error"] * 2
    assert "type 'ndarray' cannot be compared with the proposal: define '==' for it" in found.failures[0].detail


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_partial_value_zero_scores_the_end_and_nothing_else(joint: str) -> None:
    found, _ = tree(Verified(), tasks=None, options={"partial_value": "zero", "joint": joint})
    ends = {str(episode.turns[-1].node) for episode in found.episodes}
    assert ones(found) == {name: float(name in ends) for name in ones(found)}
    assert len(ends) == 2 * (1 + 2 * (1 + 2 * 1))  # the last verdict is one: max_nodes
    assert not magrpo(found, gamma=1.0, joint_mode=joint).advantage.any()  # the length makes no difference
    assert magrpo(tree(Verified(), tasks=None)[0], gamma=1.0).advantage.any()  # where proposals count, it does


def test_the_early_stop_looks_at_what_counts() -> None:
    class Confirmed(Writers):
        async def run(self, task: Task, team: Team) -> str:
            draft = (await team["one"].act("draft")).text
            team.propose(draft)
            verdict = (await team["two"].act(draft)).text
            if verdict == "b0":
                return draft  # earns 0, though its score is 1
            team.propose(f"{draft} {verdict}")
            return (await team["one"].act("once more")).text + "!"

    class Verdicts(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float(answer != "a0" and answer != "a1") if len(answer) > 2 else 0.6

    options = {"stop_above": 0.7}  # 0.6 at the root; below, (0 + 1) / 2, with the scores (0.6 + 1) / 2
    found, _ = tree(Confirmed(), tasks=Verdicts(), options=options)
    assert {name for name in ones(found) if name.startswith("0.1.")} == {"0.1.0", "0.1.1"}


def by_hand(found: Sample, gamma: float) -> dict[str, float]:
    """R_j = r_j + gamma * mean over the children's R, written out over the rows of an aligned tree."""
    reward = {str(turn.node): turn.rewards["team"] for turn in found.turns}
    above = {turn.node: turn.parent for turn in found.turns}

    def ret(node: str) -> float:
        below = [ret(child) for child in reward if above[child] == node]
        return reward[node] + (gamma * sum(below) / len(below) if below else 0.0)

    return {node: ret(node) for node in reward}


def magrpo(found: Sample, **options: Any) -> AdvantageResult:
    method = algorithm("magrpo", **{"returns": "tree_mean", **options})
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
    found, context = tree(Writers(turns=1), k=3, options={"joint": "cross"})
    assert len(context.asked) == 6
    assert [row_of(turn) for turn in found.turns] == [
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


def test_crossed_magrpo_is_the_recursion_over_joint_actions() -> None:
    found, context = tree(Writers(), TALKERS, options={"joint": "cross"})
    assert len(context.asked) == 4 + 4 * 4
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
    def reward(task: Task, turn: Turn, episode: Episode) -> float:
        mate = next(t for t in episode.turns if t.agent != turn.agent)
        return float(turn.action.text[1] + mate.action.text[1])

    found, _ = tree(Writers(turns=1), rewards={"two": reward})
    assert [turn.rewards.get("role") for turn in found.turns] == [None, 0, None, 11]
    found, _ = tree(Writers(turns=1), rewards={"two": reward}, options={"joint": "cross"})
    assert [turn.rewards.get("role") for turn in found.turns] == [None, None, 0 + 1, 10 + 11]


def test_an_action_is_of_no_use_where_it_was_in_all_its_joint_actions() -> None:
    class Strict(Writers):
        async def run(self, task: Task, team: Team) -> str:
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

    found, context = tree(Writers(), options={"stop_above": above}, tasks=First())
    assert len({turn.node for turn in found.turns}) == nodes
    assert len(context.asked) == 2 * nodes
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


class Broken(ScriptedContext):
    """Requests that fail, by act and name."""

    fails: Callable[[Act, str], bool] = staticmethod(lambda act, name: False)

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if self.fails(act, candidate):
            raise ConnectionError("no server")
        return await super().act(act, session, candidate, agent)


class OneFails(Broken):
    fails = staticmethod(lambda act, name: (act.agent, name) == ("two", "1"))


def test_a_failed_action_removes_its_joint_actions_and_is_reported_once() -> None:
    found, _ = tree(Writers(turns=1), k=3, context=OneFails)
    assert [turn.node for turn in found.turns] == ["0", "0", "2", "2"]
    assert [turn.index for turn in found.turns] == [0, 1, 2, 3]
    assert [(failure.session, failure.reason) for failure in found.failures] == [(0, "policy-error")]
    found, _ = tree(Writers(turns=1), k=3, context=OneFails, options={"joint": "cross"})
    assert [row_of(turn)[1] for turn in found.turns] == ["0+2", "3+5", "6+8", "0+3+6", "2+5+8"]
    assert len(found.failures) == 1
    assert len(found.episodes) == 6
    joint = {f"{3 * i + j}": worth(f"write: [a{i} b{j}]") for i in range(3) for j in range(3)}
    assert found.turns[0].rewards == {"team": joint["0"] + joint["2"]}
    magrpo(found, joint_mode="cross")  # what is left is a tree


class Picky(Writers):
    """Cannot continue after some joint moves, each given as "a b" with a space at its end."""

    cannot: tuple[str, ...] = ()

    async def run(self, task: Task, team: Team) -> str:
        history = ""
        for _ in range(self.turns):
            parts = await team.act({"one": f"one {history}", "two": f"two {history}"})
            history += f"{parts['one'].text}{parts['two'].text} "
            if history in self.cannot:
                raise ValueError("cannot be read")
        return history


def test_crossed_a_product_is_left_where_a_joint_action_fails() -> None:
    cross = {"joint": "cross"}
    found, _ = tree(Picky(turns=1, cannot=("a0b0 ",)), tasks=None, options=cross)
    assert [row_of(turn) for turn in found.turns] == [
        (0, "2+3", None, "one", 0, "a1"),
        (1, "2", None, "two", 0, "b0"),
        (2, "3", None, "two", 0, "b1"),
    ]
    assert [turn.rewards["team"] for turn in found.turns] == [2.0, 1.0, 1.0]
    assert [(e.id, e.leaf, e.answer) for e in found.episodes] == [("q_0_2", None, "a1b0 "), ("q_0_3", None, "a1b1 ")]
    assert [failure.reason for failure in found.failures] == ["workflow-error"]
    assert not magrpo(found, joint_mode="cross").advantage.any()
    found, _ = tree(Picky(turns=1, cannot=("a0b1 ", "a1b1 ")), options=cross)  # b1 has both: one completion is enough
    assert [turn.node for turn in found.turns] == ["0", "2", "0+2"]
    found, _ = tree(Picky(turns=1, cannot=("a0b1 ", "a1b0 ", "a1b1 ")), k=3, options=cross)
    assert [turn.action.text for turn in found.turns] == ["a0", "a2", "b0", "b2"]  # a1, then b1, in fewer than a0


@given(
    acts=st.integers(1, 3),
    k=st.integers(1, 3),
    share=st.floats(0, 1),
    random=st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_what_is_left_is_a_product_of_what_came(acts: int, k: int, share: float, random: Random) -> None:
    tried = list(itertools.product(range(k), repeat=acts))
    came = [choice for choice in tried if random.random() >= share]
    left = product_of(came, tried)
    assert set(left) <= set(came)
    completions = [sorted({choice[act] for choice in left}) for act in range(acts)]
    assert left == list(itertools.product(*completions))
    assert left == tried or len(came) < len(tried)
    assert product_of(reversed(came), tried) == left


@pytest.mark.parametrize("turns", [2, 3])
@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_a_node_below_which_all_fail_came_to_nothing_itself(joint: str, turns: int) -> None:
    moves = [f"a{i}b{j} " for i in range(2) for j in range(2)]
    below = tuple("".join(["a0b0 ", *rest]) for rest in itertools.product(moves, repeat=turns - 1))
    found, _ = tree(Picky(turns=turns, cannot=below), tasks=None, options={"joint": joint})
    names = {name for turn in found.turns for name in str(turn.node).split("+")}
    left, width = ({"1"}, 2) if joint == "aligned" else ({"2", "3"}, 4)
    assert {name for name in names if "." not in name} == left
    assert {name for name in names if name.count(".") == 1} == {f"{i}.{j}" for i in left for j in range(width)}
    assert [turn.index for turn in found.turns] == list(range(len(found.turns)))
    assert {(episode.finished, episode.score) for episode in found.episodes} == {(True, 1.0)}
    assert len(found.failures) == {"aligned": [2, 4], "cross": [4, 4]}[joint][turns - 2]  # crossed, the third is one
    assert not magrpo(found, gamma=1.0, joint_mode=joint).advantage.any()


def test_where_everything_below_fails_nothing_is_left() -> None:
    class Later(Broken):
        fails = staticmethod(lambda act, name: name.startswith("1.") or name == "0.1")

    found, _ = tree(Writers(), context=Later)
    assert [turn.node for turn in found.turns] == ["0", "0", "0.0", "0.0"]
    assert [(e.id, e.finished) for e in found.episodes] == [("q_0_0.0", True)]
    assert [" act one:1" in failure.detail for failure in found.failures] == [True, False] + [True] * 2 + [False] * 2

    class Deep(Broken):
        fails = staticmethod(lambda act, name: name.count(".") == 2)

    for joint, failures in (("aligned", 4 * 4), ("cross", 16 * 2)):  # two acts, each asked for twice, crossed for once
        found, _ = tree(Writers(turns=3), context=Deep, options={"joint": joint})
        assert (found.episodes, found.turns) == ([], [])  # nothing of two levels that had come
        assert len(found.failures) == failures

    class NoActions(Broken):
        fails = staticmethod(lambda act, name: True)

    found, _ = tree(Writers(), context=NoActions)
    assert (found.episodes, len(found.failures)) == ([], 4)


def test_what_was_stopped_is_a_leaf_though_nothing_is_below() -> None:
    found, _ = tree(Writers(), tasks=None, options={"stop_above": 0.5})
    assert [(episode.id, episode.finished) for episode in found.episodes] == [("q_0_0", False), ("q_0_1", False)]


class Flaky(Broken):
    """All that comes to an end scores 1; requests and scores fail by their hash, `share` percent of them."""

    def __init__(self, *args: Any, share: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self.share = share
        self.lost: dict[Reason, int] = {"policy-error": 0, "score-error": 0}

    def unlucky(self, *parts: Any) -> bool:
        return number(self._seed, *parts) % 100 < self.share

    async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
        if self.unlucky(act.key, candidate) and self.unlucky("request", act.key, candidate):  # seldom: it takes many
            self.lost["policy-error"] += 1
            raise ConnectionError("no server")
        return await super().act(act, session, candidate, agent)

    async def state(self, run: Any, session: int, turns: Any, answer: Any) -> Episode:
        if self.unlucky([turn.action.text for turn in turns]):
            self.lost["score-error"] += 1
            raise ConnectionError("no grader")
        return await super().state(run, session, turns, answer)


def check_products(rows: list[Turn]) -> None:
    """At every node, every tuple of completions, one for each act, is exactly one joint action."""
    for parent in {turn.parent for turn in rows}:
        acts: dict[tuple[str, str], list[set[str]]] = {}
        for turn in rows:
            if turn.parent == parent:
                acts.setdefault(turn.key, []).append(set(str(turn.node).split("+")))
        for held in acts.values():
            assert len({len(names) for names in held}) == 1
        met = [set.intersection(*choice) for choice in itertools.product(*acts.values())]
        assert [len(names) for names in met] == [1] * len(met)
        assert set.union(*met) == set.union(*(names for held in acts.values() for names in held))


@given(
    workflow=workflows(failing=True, acts=4),
    seed=st.integers(0, 999),
    k=st.integers(1, 3),
    share=st.sampled_from([25, 12, 5, 0]),
    joint=st.sampled_from(["aligned", "cross"]),
)
@settings(max_examples=40, deadline=None)
def test_no_failure_makes_an_advantage(workflow: Programmed, seed: int, k: int, share: int, joint: str) -> None:
    workflow = Programmed((Joint(("solver", "critic")), *workflow.program))
    options = {"joint": joint, "partial_value": "zero", "max_nodes": 40}
    how = {"task": TASK, "context": functools.partial(Flaky, share=share), "seed": seed, "tasks": None}
    found, context = tree(workflow, talkers(seed), k, options=options, **how)
    assert isinstance(context, Flaky)
    reasons = Counter(failure.reason for failure in found.failures)
    assert {reason: reasons[reason] for reason in context.lost} == context.lost  # each once
    used = {id(turn) for episode in found.episodes for turn in episode.turns}
    assert used == {id(turn) for turn in found.turns}
    assert [turn.index for turn in found.turns] == list(range(len(found.turns)))
    for episode in found.episodes:
        assert episode.finished
        acts = [record.act.key for record in episode.journal.acts() if record is not None]
        assert sorted(turn.key for turn in episode.turns) == sorted(acts)
    if not found.turns:
        return
    if joint == "cross":
        check_products(found.turns)
    result = magrpo(found, gamma=1.0, joint_mode=joint)
    assert result.advantage == pytest.approx(np.zeros(len(found.turns)), abs=1e-9)


@given(workflow=workflows(acts=5), seed=st.integers(0, 99), joint=st.sampled_from(["aligned", "cross"]))
@settings(max_examples=6, deadline=None)
def test_the_sampler_keeps_its_promises_where_only_ends_count(workflow: Programmed, seed: int, joint: str) -> None:
    sampler = JointTree(2, joint, partial_value="zero", max_nodes=30)
    check_sampler(sampler, workflow, TASK, talkers(seed), tasks=Hashed(), seed=seed, orders=1)


def test_a_workflow_that_cannot_begin_fails_every_joint_action() -> None:
    class Stillborn(Workflow):
        async def run(self, task: Task, team: Team) -> str:
            raise ValueError("nothing to do")

    found, _ = tree(Stillborn(), k=3)
    assert [failure.reason for failure in found.failures] == ["workflow-error"] * 3


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_an_action_that_times_out_is_reported_once(joint: str) -> None:
    class Slow(ScriptedContext):
        async def act(self, act: Act, session: int, candidate: Any = 0, agent: str | None = None) -> Action:
            if (act.agent, candidate) == ("two", "1"):
                await asyncio.sleep(60)
            return await super().act(act, session, candidate, agent)

    limits = Limits(episode_seconds=0.5)
    found, _ = tree(Writers(turns=1), context=Slow, limits=limits, options={"joint": joint})
    assert [failure.reason for failure in found.failures] == ["timeout"]
    assert len(found.episodes) == {"aligned": 1, "cross": 2}[joint]


def test_no_branch_waits_for_another() -> None:
    finished: list[str] = []

    class Watched(ScriptedContext):
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

    context = Watched(Writers(turns=3), Q, TALKERS, tasks=Hashed())

    async def go() -> Sample:
        context.done = asyncio.Event()
        return await JointTree(2).sample(context)

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
    found, context = tree(program, talkers(), task=TASK, rewards={"solver": own_words})
    assert len(found.turns) == 2 * 2 + 4
    assert len(context.asked) == 8


def test_options_are_checked() -> None:
    with pytest.raises(MarlError, match="'max_nodes' must be at least 1, got 0"):
        build(JointTree, {"max_nodes": 0}, "sampler")
    with pytest.raises(MarlError, match=r"'sampler.joint' must be one of 'aligned', 'cross'.*did you mean 'cross'"):
        build(JointTree, {"joint": "crossed"}, "sampler")
    assert build(JointTree, {"stop_above": 1}, "sampler").stop_above == 1
    with pytest.raises(MarlError, match="'stop_above' needs scores, but 'partial_value' is 'zero': leave it"):
        build(JointTree, {"stop_above": 1, "partial_value": "zero"}, "sampler")
    assert build(JointTree, {"partial_value": "zero"}, "sampler").stop_above is None
