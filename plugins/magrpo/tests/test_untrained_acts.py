"""Acts of agents that are not trained, in every sampler: without candidates, groups or a discount."""

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
from marl_verl.algo.sampling import Independent, Sample, Sampler
from marl_verl.episode import Act, Team, Workflow
from marl_verl.tasks import Task, TaskSet

Q = Task("q", "write:")


class Edited(Workflow):
    """Two writers act jointly, twice; an expert says what to change, between turns or also at the end."""

    last: bool = False

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for turn in range(2):
            parts = await team.act({"one": f"{text} (one)", "two": f"{text} (two)"})
            text += f" [{parts['one'].text} {parts['two'].text}]"
            team.propose(text)
            if turn == 0 or self.last:
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

    async def run(self, task: Task, team: Team) -> str:
        text = task.prompt
        for _ in range(2):
            text += (await team["one"].act(text)).text
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
        (JointTree(4), Edited(), 4, 2 * (4 + 16)),
        (JointTree(2), Edited(last=True), 2 + 4, 2 * (2 + 4)),
        (JointTree(2, joint="cross"), Edited(), 4, 4 + 16),
        (GreedyTree(4), Alternating(), 2, 2 * 4),
        (TreeSearch(6), Alternating(), 6, 6),
        (Independent(3), Alternating(), 3 * 2, 3 * 4),
    ],
)
def test_an_untrained_agent_is_asked_once_a_state(sampler: Sampler, workflow: Workflow, asked: int, rows: int) -> None:
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
    roots = [ret for ret, turn in zip(result.ret, sample.turns, strict=True) if turn.parent is None]
    assert {round(float(ret), 9) for ret in roots} == {4.6}
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


@pytest.mark.parametrize("sampler", [JointTree(2), JointTree(2, joint="cross")])
def test_a_transition_that_fails_loses_its_joint_action_only(sampler: Sampler) -> None:
    def fails(act: Act, session: int, candidate: Any) -> str:
        if str(candidate) == "1":
            raise ValueError("no expert")
        return said(act, session, candidate)

    policy = ScriptedPolicy({"one": said, "two": said, "expert": fails})
    sample = asyncio.run(sampler.sample(ScriptedContext(Edited(), Q, policy, tasks=Hashed(), untrained=["expert"])))
    assert [failure.reason for failure in sample.failures] == ["policy-error"]
    assert sample.turns
    assert all(turn.node != "1" for turn in sample.turns)
