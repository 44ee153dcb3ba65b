"""Acts of agents that are not trained, in every sampler: without candidates, groups or a discount."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_mars2.tree_search import TreeSearch
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler
from marl_verl_testing.algorithm import row_of as row
from marl_verl_testing.rows import algorithm
from marl_verl_testing.workflows import Hashed

from marl_verl.algo.advantage import RowTable
from marl_verl.algo.sampling import BestOf, Independent, Sample, Sampler
from marl_verl.episode import Act, Team, Workflow
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task, TaskSet
from marl_verl.team import read_team

Q = Task("q", "write:")


class Edited(Workflow):
    """Two writers act jointly; an expert reads both parts and says what to change, between turns or also at the end."""

    turns: int = 2
    proposes: bool = True
    last: bool = False
    first: bool = False

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        if self.first:
            text += f" <{(await team['expert'].act(text)).text}>"
        for turn in range(self.turns):
            parts = await team.act({"one": f"{text} (one)", "two": f"{text} (two)"})
            text += f" [{parts['one'].text} {parts['two'].text}]"
            if self.proposes:
                team.propose(text)
            if turn + 1 < self.turns or self.last:
                text += f" <{(await team['expert'].act(text)).text}>"
        return text


class Mixed(Workflow):
    """A trained and two untrained agents act in one joint move, twice."""

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for _ in range(2):
            parts = await team.act({"expert": f"{text} e", "one": f"{text} 1", "two": f"{text} 2"})
            text += f" [{' '.join(action.text for action in parts.values())}]"
            team.propose(text)
        return text


class Alternating(Workflow):
    """A solver and an untrained critic in turn."""

    proposes: bool = True

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for _ in range(2):
            text += (await team["one"].act(text)).text
            if self.proposes:
                team.propose(text)
            text += (await team["expert"].act(text)).text
        return text


def said(act: Act, session: int, candidate: Any) -> str:
    return f"{act.agent}.{session}.{candidate}"


def team(*agents: str) -> ScriptedPolicy:
    return ScriptedPolicy(dict.fromkeys(agents, said))


WRITERS = team("one", "two", "expert")


def sampled(
    sampler: Sampler, workflow: Workflow, policy: ScriptedPolicy = WRITERS, tasks: TaskSet | None = None, **how: Any
) -> tuple[Sample, int]:
    """(the sample, how often the untrained agent was asked), of a checked sampler."""
    how = {"untrained": ["expert"], **how}
    check_sampler(sampler, workflow, Q, policy, tasks=tasks or Hashed(), orders=1, **how)
    context = ScriptedContext(workflow, Q, policy, tasks=tasks or Hashed(), **how)
    sample = asyncio.run(sampler.sample(context))
    assert not sample.failures
    return sample, sum(act.agent in how["untrained"] for _, act, _ in context.asked)


@pytest.mark.parametrize(
    ("sampler", "workflow", "asked", "rows"),
    [
        (JointTree(4), Edited(), 4, 2 * (4 + 16)),  # the joint actions that continue
        (JointTree(4, stop_above=-1.0), Edited(), 0, 2 * 4),  # none does
        (JointTree(4, stop_above=1e9), Edited(), 4, 2 * (4 + 16)),
        (JointTree(4), Edited(proposes=False), 4, 2 * (4 + 16)),
        (JointTree(4, partial_value="zero"), Edited(), 4, 2 * (4 + 16)),
        (JointTree(2), Edited(last=True), 2 + 4, 2 * (2 + 4)),
        (JointTree(2), Edited(first=True), 1 + 2, 2 * (2 + 4)),
        (JointTree(2, joint="cross"), Edited(), 4, 4 + 16),
        (JointTree(3, max_nodes=12), Edited(), 3, 2 * (3 + 9)),  # no level of the tree
        (GreedyTree(4), Alternating(), 2, 2 * 4),
        (TreeSearch(6), Alternating(), 6, 6),
        (Independent(3), Alternating(), 3 * 2, 3 * 4),
        (BestOf(3), Alternating(), 3 * 2, 3 * 4),
    ],
)
def test_an_untrained_agent_is_asked_once_for_each_state(
    sampler: Sampler, workflow: Workflow, asked: int, rows: int
) -> None:
    policy = WRITERS if isinstance(workflow, Edited) else team("one", "expert")
    sample, times = sampled(sampler, workflow, policy)
    assert (times, len(sample.turns)) == (asked, rows)


class Levels(TaskSet):
    """1 for the text of one joint move, 4 for that of two."""

    quick = True

    def score(self, task: Task, answer: Any) -> float:
        return {1: 1.0, 2: 4.0}[str(answer).count("[")]


def test_an_expert_discounts_nothing_and_is_in_no_group() -> None:
    sample, _ = sampled(JointTree(4), Edited(), tasks=Levels())
    result = algorithm("magrpo", **{"gamma": 0.9}).compute(RowTable.from_rows([row(t) for t in sample.turns]))
    assert {
        round(float(ret), 9) for ret, turn in zip(result.ret, sample.turns, strict=True) if turn.parent is None
    } == {4.6}
    assert set(np.bincount(result.group).tolist()) == {4}
    episode = sample.episodes[0]
    assert [turn.agent for turn in episode.turns] == ["one", "two", "expert", "one", "two"]
    assert "expert" in {record.act.agent for record in episode.journal.acts()}
    assert sample.extra_tokens == {"untrained": sum(len(f"expert.0.{node}") for node in range(4))}


@pytest.mark.parametrize(("joint", "asked", "rows"), [("aligned", 2 + 4, 6), ("cross", 2 + 4, 6)])
def test_untrained_agents_of_a_joint_move_act_once_for_each_joint_action(joint: Any, asked: int, rows: int) -> None:
    untrained = ["expert", "two"]
    sample, times = sampled(JointTree(2, joint=joint), Mixed(), untrained=untrained)
    assert (times, len(sample.turns)) == (2 * asked, rows)
    sample, times = sampled(GreedyTree(3), Mixed(), untrained=untrained)
    assert (times, len(sample.turns)) == (2 * 2 * 3, 2 * 3)  # proposed after the move: each candidate's value needs it


def test_a_tree_without_an_act_of_a_trained_agent_is_one_path() -> None:
    for sampler in (JointTree(2), GreedyTree(2), TreeSearch(2)):
        context = ScriptedContext(Alternating(), Q, team("one", "expert"), tasks=Hashed(), untrained=["one", "expert"])
        sample = asyncio.run(sampler.sample(context))
        assert (len(sample.episodes), sample.turns, len(context.asked)) == (1, [], 4)
        assert sample.episodes[0].finished
        assert not sample.failures


@pytest.mark.parametrize(
    "sampler", [JointTree(2), JointTree(2, joint="cross"), JointTree(2, stop_above=9), GreedyTree(2)]
)
def test_a_transition_that_fails_loses_its_joint_action_only(sampler: Sampler) -> None:
    def fails(act: Act, session: int, candidate: Any) -> str:
        if str(candidate) in ("1", "0-0", "0-1"):
            raise ValueError("no expert")
        return said(act, session, candidate)

    policy = ScriptedPolicy({"one": said, "two": said, "expert": fails})
    workflow = Edited() if isinstance(sampler, JointTree) else Alternating()
    sample = asyncio.run(sampler.sample(ScriptedContext(workflow, Q, policy, tasks=Hashed(), untrained=["expert"])))
    assert [failure.reason for failure in sample.failures] == ["policy-error"]
    assert sample.turns
    assert all(turn.node != "1" for turn in sample.turns if isinstance(sampler, JointTree))


def test_arms_of_a_training_search_are_trained() -> None:
    context = ScriptedContext(Alternating(), Q, team("one", "expert"), tasks=Hashed(), untrained=["expert"])
    with pytest.raises(MarlError, match="agent 'expert' is not trained"):
        asyncio.run(TreeSearch(2, arms=["one", "expert"]).sample(context))


PUBLIC = {"frozen": True, "model": {"path": "m"}}
OUTSIDE = {"endpoint": {"url": "http://localhost/v1", "model": "m"}}


@pytest.mark.parametrize(
    ("policies", "explored"),
    [
        ({"a": {"model": {"path": "m"}}, "b": PUBLIC}, {"a"}),
        ({"a": {"model": {"path": "m"}}, "b": OUTSIDE}, {"a"}),
        ({"a": PUBLIC, "b": OUTSIDE}, {"a"}),  # an evaluation, in which all policies are frozen
        ({"a": PUBLIC, "b": PUBLIC}, {"a", "b"}),
        ({"a": OUTSIDE, "b": OUTSIDE}, {"a", "b"}),
    ],
)
def test_trained_policies_are_explored_and_in_an_evaluation_those_of_the_run(
    policies: dict[str, Any], explored: set[str]
) -> None:
    parts = {kind: {"name": "any"} for kind in ("task", "workflow", "algorithm")}
    agents = {f"of-{name}": {"policy": name} for name in policies}
    assert read_team({"agents": agents, "policies": policies, **parts}, evaluation=True).explored == explored


class Public(Hashed):
    def public_score(self, task: Task, answer: Any) -> float:
        return float(len(str(answer)))


def test_a_search_at_inference_may_have_any_arms_and_asks_others_once_a_node() -> None:
    for arms, asked, nodes in ((["one"], 5, 5), (["one", "expert"], 0, 5)):
        sampler = TreeSearch(5, guide="public", arms=arms)
        policy = team("one", "expert")
        context = ScriptedContext(Alternating(), Q, policy, tasks=Public(), untrained=["expert"])
        sample = asyncio.run(sampler.sample(context))
        assert not sample.failures
        assert len(sample.turns) == nodes
        transitions = len(context.asked) - nodes
        assert transitions == asked


def test_turns_of_an_untrained_opponent_are_compared_with_none() -> None:
    context = ScriptedContext(
        Alternating(), Q, team("one", "expert"), tasks=Sided(), untrained=["expert"], sides={"one": "x", "expert": "y"}
    )
    sample = asyncio.run(Independent(3).sample(context))
    rows = [{**row(turn), "untrained": turn.agent == "expert"} for turn in sample.turns]
    table = RowTable.from_rows(rows)
    result = algorithm("grpo").compute(table)
    sizes = {table.agent.value(at): len(result.members(at)) for at in range(len(table))}
    assert sizes == {"one": 6, "expert": 1}
    assert {float(r) for r, turn in zip(result.reward, sample.turns, strict=True) if turn.agent == "expert"} == {-1.0}


class Sided(TaskSet):
    """Side x always wins."""

    quick = True

    def score(self, task: Task, answer: Any) -> dict[str, float]:
        return {"x": 1.0, "y": -1.0}
