"""AT-GRPO's tree on mathematics: each candidate has the reward of its own answer."""

from __future__ import annotations

from typing import Any

from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_math.tasks import MathTasks
from marl_verl_math.tool_user import REASONER, TOOL_USER, ToolUserReasoner, own_answer
from marl_verl_testing import ScriptedPolicy, check_sampler

from marl_verl import Task
from marl_verl.episode import Act

TASK = Task("sum", "What is 6 * 7?", {"answer": "42"})


def printing(answer: str) -> str:
    return f"```python\nprint({answer})\n```"


def test_each_candidate_is_rewarded_for_its_own_answer() -> None:
    def program(act: Act, session: int, candidate: Any) -> str:
        return {"0": printing("42"), "1": printing("40")}.get(str(candidate)[-1], "none")

    def think(act: Act, session: int, candidate: Any) -> str:
        return rf"{candidate}: \boxed{{4{str(candidate)[-1]}}}"

    policy = ScriptedPolicy({TOOL_USER: program, REASONER: think})
    rewards = {TOOL_USER: own_answer, REASONER: own_answer}
    found = check_sampler(GreedyTree(3), ToolUserReasoner(turns=1), TASK, policy, tasks=MathTasks(), rewards=rewards)
    assert [(turn.rewards["team"], turn.rewards["role"]) for turn in found.turns] == [
        *[(1.0, 1.0), (0.0, 0.0), (0.0, -0.1)],
        *[(0.0, 0.0), (0.0, 0.0), (1.0, 1.0)],
    ]
