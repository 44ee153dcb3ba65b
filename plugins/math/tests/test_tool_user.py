"""The tool user and the reasoner: when they stop, what they are shown, and the reward of each act."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from marl_verl_math.tasks import MathTasks
from marl_verl_math.tool_user import REASONER, TOOL_USER, OneReasoner, ToolUserReasoner, own_answer
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent

TASK = Task("sum", "What is 6 * 7?", {"answer": "42"})
SCORES = MathTasks()


def score(task: Task, answer: Any) -> float:
    return asyncio.run(SCORES.score(task, answer))


def printing(answer: str) -> str:
    return f"```python\nprint({answer})\n```"


def test_it_is_over_as_soon_as_program_and_reasoner_agree() -> None:
    policy = ScriptedPolicy({TOOL_USER: [printing("41"), printing("84 / 2")], REASONER: r"I say \boxed{42}"})
    run = check_workflow(ToolUserReasoner(), TASK, policy)
    assert run.answer == [[TOOL_USER, "41"], [REASONER, "42"], [TOOL_USER, "42.0"], [REASONER, "42"]]
    seen = [shown(act) for act, _ in run.turns]
    assert "printed:\n41\n" in seen[1]
    assert "a program answered 41, and the reasoner 42" in seen[2]
    assert score(TASK, run.answer) == 1.0


def test_a_team_that_never_agrees_answers_after_the_last_turn() -> None:
    policy = ScriptedPolicy({TOOL_USER: "I have no program", REASONER: r"\boxed{41}"})
    run = check_workflow(ToolUserReasoner(turns=2), TASK, policy)
    assert run.answer == [[TOOL_USER, None], [REASONER, "41"]] * 2
    assert set(run.invalid.values()) == {"no program that prints an answer"}
    assert score(TASK, run.answer) == 0.0


@pytest.mark.parametrize(
    ("program", "answer", "rewards"),
    [
        (printing("42"), r"\boxed{42}", [1.0, 1.0]),
        (printing("41"), r"\boxed{42}", [0.0, 1.0]),
        (printing("84 / 2"), r"\boxed{6 \cdot 7}", [1.0, 1.0]),
        ("print(42)", r"\boxed{42}", [-0.1, 1.0]),
        (printing("42"), "no idea", [1.0, -0.1]),
        (printing("42"), "it is 42.", [1.0, 1.0]),
        (printing("'none'"), r"\boxed{}", [-0.1, -0.1]),
        ("```python\n1 / 0\n```", r"\boxed{\frac{84}{2}}", [-0.1, 1.0]),
        (printing("1, 42"), r"\boxed{-42}", [1.0, 0.0]),
        (printing("4.2e1"), r"\boxed{x = 42}", [1.0, 1.0]),
    ],
)
def test_each_act_is_rewarded_for_its_own_answer(program: str, answer: str, rewards: list[float]) -> None:
    policy = ScriptedPolicy({TOOL_USER: program, REASONER: answer})
    given = {TOOL_USER: own_answer, REASONER: own_answer}
    context = ScriptedContext(ToolUserReasoner(turns=1), TASK, policy, tasks=SCORES, rewards=given)
    sample = asyncio.run(Independent(1).sample(context))
    assert [turn.rewards["role"] for turn in sample.turns] == rewards


def test_the_single_agent_answers_in_one_go() -> None:
    run = check_workflow(OneReasoner(), TASK, ScriptedPolicy({REASONER: "it is 42"}))
    assert (run.answer, score(TASK, run.answer)) == ([[REASONER, "42"]], 1.0)
