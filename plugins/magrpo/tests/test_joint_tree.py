"""The joint tree of MAGRPO: every joint action goes on, returns follow the branches."""

import functools
import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm
from marl_verl_testing.workflows import TASK, Hashed, Joint, Programmed, eighth, number, talkers, workflows

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.sampling import Sample
from marl_verl.episode import Act, Action, Episode, Team, Turn, Workflow
from marl_verl.episode.errors import Reason
from marl_verl.errors import MarlError
from marl_verl.options import build
from marl_verl.tasks import Task, TaskSet
from tests.loops import completed


class Writers(Workflow):
    """Two writers act jointly in each turn; after every turn they propose their text."""

    turns: int = 2

    async def run(self, task: Task, team: Team) -> str:
        history = task.prompt
        for _ in range(self.turns):
            parts = await team.act({"one": f"{history} (one)", "two": f"{history} (two)"})
            history += f" [{parts['one'].text} {parts['two'].text}]"
            team.propose(history)
        return history


def numbered(act: Act, session: int, candidate: Any) -> str:
    """Action k of the first writer is "a{k}", of the second "b{k}"."""
    return f"{'a' if act.agent == 'one' else 'b'}{candidate.rpartition('.')[2]}"


NUMBERED = ScriptedPolicy({"one": numbered, "two": numbered})


def tree(
    workflow: Workflow, policy: ScriptedPolicy = NUMBERED, k: int = 2, options: Any = None, **how: Any
) -> tuple[Sample, ScriptedContext]:
    kind = how.pop("context", ScriptedContext)
    context = kind(workflow, how.pop("task", Task("q", "write:")), policy, how.pop("tasks", Hashed()), **how)
    return completed(build(JointTree, {"joint_actions": k, **(options or {})}, "sampler").sample(context)), context


def row_of(turn: Turn) -> tuple[Any, ...]:
    return turn.index, turn.node, turn.parent, turn.agent, turn.turn, turn.action.text


def worth(answer: str) -> float:
    return eighth("score", "q", answer)


def test_aligned_every_joint_action_spawns_a_child() -> None:
    sample, context = tree(Writers())
    nodes = [("0", None, 0), ("0.0", "0", 1), ("0.1", "0", 1), ("1", None, 0), ("1.0", "1", 1), ("1.1", "1", 1)]
    assert [row_of(turn) for turn in sample.turns] == [
        (2 * at + second, node, parent, ("one", "two")[second], turn, f"{'ab'[second]}{node[-1]}")
        for at, (node, parent, turn) in enumerate(nodes)
        for second in (0, 1)
    ]
    assert sample.turns[8].observation[-1]["content"] == "write: [a1 b1] (one)"
    answers = [f"write: [a{i} b{i}] [a{j} b{j}]" for i in range(2) for j in range(2)]
    assert [(e.id, e.answer, e.finished) for e in sample.episodes] == [
        (f"q_0_{name}", answer, True) for name, answer in zip(["0.0", "0.1", "1.0", "1.1"], answers, strict=True)
    ]
    paths = [[0, 1, 2, 3], [0, 1, 4, 5], [6, 7, 8, 9], [6, 7, 10, 11]]
    assert [[turn.index for turn in e.turns] for e in sample.episodes] == paths
    assert [e.score for e in sample.episodes] == [worth(answer) for answer in answers]
    assert {turn.node: turn.rewards for turn in sample.turns} == {
        **{str(i): {"team": worth(f"write: [a{i} b{i}]")} for i in range(2)},
        **{f"{i}.{j}": {"team": worth(answers[2 * i + j])} for i in range(2) for j in range(2)},
    }
    assert len(context.asked) == 12
    assert not sample.extra_tokens


class Verified(Workflow):
    """A writer and a verifier, until it accepts; at most three rounds."""

    async def run(self, task: Task, team: Team) -> str:
        for at in range(3):
            draft = (await team["one"].act(f"{task.prompt} {at}")).text
            team.propose(draft)
            if (await team["two"].act(f"{draft} {at}")).text == "b0":
                break
        return draft


def ones(sample: Sample) -> dict[str, float]:
    return {str(turn.node): turn.rewards["team"] for turn in sample.turns}


def test_an_answer_that_was_proposed_before_counts_once() -> None:
    sample, _ = tree(Verified(), tasks=None)
    # a draft is worth 1, whoever accepts it earns nothing, nor does who sends it back, nor the last, accepting or not
    assert set(ones(sample)) >= {"0", "0.0", "0.1", "0.1.0", "0.1.0.1.0.0"}
    assert {name for name, reward in ones(sample).items() if reward} == {
        name for name in ones(sample) if name.count(".") % 2 == 0
    }
    assert set(ones(sample).values()) == {0.0, 1.0}
    assert {(e.score, e.success, e.finished) for e in sample.episodes} == {(1.0, True, True)}
    assert {episode.answer for episode in sample.episodes} == {"a0", "a1"}
    role = tree(Verified(), tasks=None, rewards={"two": lambda task, turn, episode: episode.score})[0]
    ends = [episode.turns[-1].rewards for episode in role.episodes]
    assert ends == [{"team": 0.0, "role": 1.0}] * len(ends)  # it alone counts anew: a role reward is of the state


@pytest.mark.parametrize("joint", ["aligned", "cross"])
def test_partial_value_zero_scores_the_end_and_nothing_else(joint: str) -> None:
    sample, _ = tree(Verified(), tasks=None, options={"partial_value": "zero", "joint": joint})
    ends = {str(episode.turns[-1].node) for episode in sample.episodes}
    assert ones(sample) == {name: float(name in ends) for name in ones(sample)}
    assert len(ends) == 2 * (1 + 2 * (1 + 2 * 1))  # the last verdict is one: max_nodes
    assert not magrpo(sample, gamma=1.0, joint_mode=joint).advantage.any()  # the length makes no difference
    assert magrpo(tree(Verified(), tasks=None)[0], gamma=1.0).advantage.any()  # where proposals count, it does


def magrpo(sample: Sample, **options: Any) -> AdvantageResult:
    method = algorithm("magrpo", **{"returns": "tree_mean", **options})
    return method.compute(RowTable.from_rows([row(turn) for turn in sample.turns]))


@pytest.mark.parametrize(("above", "nodes"), [(0.4, 2), (0.5, 6), (None, 6)])
def test_a_branch_stops_where_its_node_is_good_enough_on_average(above: float | None, nodes: int) -> None:
    class First(TaskSet):
        def score(self, task: Task, answer: Any) -> float:
            return float("a1" in answer)

    sample, context = tree(Writers(), options={"stop_above": above}, tasks=First())
    assert len({turn.node for turn in sample.turns}) == nodes
    assert len(context.asked) == 2 * nodes
    if nodes == 2:
        assert [(e.id, e.finished, e.score, e.answer) for e in sample.episodes] == [
            ("q_0_0", False, 0.0, "write: [a0 b0]"),
            ("q_0_1", False, 1.0, "write: [a1 b1]"),
        ]


@pytest.mark.parametrize(
    ("limit", "cross", "widths"), [(64, False, [3, 9, 27, 27]), (20, False, [3, 9, 9, 9]), (64, True, [9, 36, 36, 36])]
)
def test_a_tree_is_within_its_limit_and_every_path_goes_on(limit: int, cross: bool, widths: list[int]) -> None:
    options = {"max_nodes": limit, "joint": "cross" if cross else "aligned"}
    sample, _ = tree(Writers(turns=4), talkers(agents=("one", "two")), k=3, options=options)
    nodes = {name for turn in sample.turns for name in str(turn.node).split("+")}
    assert [sum(name.count(".") == depth for name in nodes) for depth in range(4)] == widths
    assert all(episode.finished for episode in sample.episodes)


def test_a_failed_action_removes_its_joint_actions_and_is_reported_once() -> None:
    failing = lambda request: request[2:] == ("1", "two")  # noqa: E731
    sample, _ = tree(Writers(turns=1), k=3, failing=failing)
    assert [turn.node for turn in sample.turns] == ["0", "0", "2", "2"]
    assert [turn.index for turn in sample.turns] == [0, 1, 2, 3]
    assert [(failure.session, failure.reason) for failure in sample.failures] == [(0, "policy-error")]
    sample, _ = tree(Writers(turns=1), k=3, failing=failing, options={"joint": "cross"})
    assert [row_of(turn)[1] for turn in sample.turns] == ["0+2", "3+5", "6+8", "0+3+6", "2+5+8"]
    assert (len(sample.failures), len(sample.episodes)) == (1, 6)
    joint = {f"{3 * i + j}": worth(f"write: [a{i} b{j}]") for i in range(3) for j in range(3)}
    assert sample.turns[0].rewards == {"team": joint["0"] + joint["2"]}
    magrpo(sample, joint_mode="cross")  # what is left is a tree
    with pytest.raises(MarlError, match="set joint_mode to 'cross'"):
        magrpo(sample)


class Flaky(ScriptedContext):
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
    sample, context = tree(workflow, talkers(seed), k, options=options, **how)
    assert isinstance(context, Flaky)
    reasons = Counter(failure.reason for failure in sample.failures)
    assert {reason: reasons[reason] for reason in context.lost} == context.lost  # each once
    assert {id(turn) for episode in sample.episodes for turn in episode.turns} == {id(turn) for turn in sample.turns}
    assert [turn.index for turn in sample.turns] == list(range(len(sample.turns)))
    for episode in sample.episodes:
        assert episode.finished
        acts = [record.act.key for record in episode.journal.acts() if record is not None]
        assert sorted(turn.key for turn in episode.turns) == sorted(acts)
    if not sample.turns:
        return
    if joint == "cross":
        check_products(sample.turns)
    assert magrpo(sample, gamma=1.0, joint_mode=joint).advantage == pytest.approx(np.zeros(len(sample.turns)), abs=1e-9)
