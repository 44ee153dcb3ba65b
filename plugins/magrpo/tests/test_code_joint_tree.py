"""Joint code under the joint tree: the shift, the stop rule, and an expert between the turns."""

from __future__ import annotations

import asyncio

import pytest
from marl_verl_code.joint_code import JointCode, TwoCoders
from marl_verl_magrpo.joint_tree import JointTree
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler

from marl_verl import Task
from marl_verl.algo.sampling import Independent

HELPER = "def aux(x):\n    return x + 1\n"
MAIN = "def solve(x):\n    y = aux(x)\n    return y * 2\n"
POOR = "def solve(x):\n    return 0\n"
TASK = Task(
    "t",
    'def solve(x):\n    """Twice the number after x."""\n',
    {"entry": "solve", "tests": ["assert candidate(1) == 4", "assert solve(0) == 2"]},
)


def test_a_nearly_perfect_node_is_not_continued() -> None:
    for main, turns, reward in ((MAIN, 4, 0.0), (POOR, 4 + 8, -2.5)):
        sampler = JointTree(2, stop_above=-0.2)
        policy = _distinct({"helper": HELPER, "main": main})
        sample = check_sampler(sampler, TwoCoders(), TASK, policy, tasks=JointCode(), orders=1)
        assert len(sample.turns) == turns
        assert {turn.rewards["team"] for turn in sample.turns} == {reward}
        assert {episode.score for episode in sample.episodes} == {reward + 4}


@pytest.mark.parametrize("main", [MAIN, POOR])
def test_an_expert_is_asked_once_for_each_joint_action_that_continues(main: str) -> None:
    policy = _distinct({"helper": HELPER, "main": main, "expert": MAIN})
    for sampler, asked in ((JointTree(4, stop_above=-0.2), 0 if main == MAIN else 4), (Independent(3), 3)):
        workflow = TwoCoders(feedback="expert")
        context = ScriptedContext(workflow, TASK, policy, tasks=JointCode(), untrained=["expert"])
        sample = asyncio.run(sampler.sample(context))
        assert not sample.failures
        assert sum(act.agent == "expert" for _, act, _ in context.asked) == asked


def _distinct(codes: dict[str, str]) -> ScriptedPolicy:
    """The same code in every candidate, with another comment."""
    return ScriptedPolicy(
        {agent: lambda act, session, candidate, code=code: f"{code}# {candidate}\n" for agent, code in codes.items()}
    )
