"""Joint code under the joint tree."""

from __future__ import annotations

from marl_verl_code.joint_code import JointCode, TwoCoders
from marl_verl_magrpo.joint_tree import JointTree

from marl_verl import Task
from marl_verl.testing import ScriptedPolicy, check_sampler

HELPER = "def aux(x):\n    return x + 1\n"
MAIN = "def solve(x):\n    y = aux(x)\n    return y * 2\n"
TASK = Task(
    "t",
    'def solve(x):\n    """Twice the number after x."""\n',
    {"entry": "solve", "tests": ["assert candidate(1) == 4", "assert solve(0) == 2"]},
)


def test_a_nearly_perfect_node_is_not_continued() -> None:
    good = {"helper": HELPER, "main": MAIN}
    poor = {"helper": HELPER, "main": "def solve(x):\n    return 0\n"}
    for script, turns in ((good, 4), (poor, 4 + 8)):
        sampler = JointTree(2, stop_above=3.9)
        sample = check_sampler(sampler, TwoCoders(), TASK, _distinct(script), tasks=JointCode(), orders=1)
        assert len(sample.turns) == turns


def _distinct(codes: dict[str, str]) -> ScriptedPolicy:
    """The same code in every candidate, with another comment."""
    return ScriptedPolicy(
        {agent: lambda act, session, candidate, code=code: f"{code}# {candidate}\n" for agent, code in codes.items()}
    )
