"""The solver and the verifier: what they are shown, when they stop, and their role rewards."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from marl_verl_math.solver_verifier import SolverVerifier, solution_right, verdict_right
from marl_verl_math.tasks import MathTasks
from marl_verl_math.tool_user import REASONER, TOOL_USER, ToolUserReasoner, own_answer
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent
from marl_verl.plugins.one_file import load_file, read_file

TASKS, TASK = MathTasks(), Task("t", "What is 1/2 + 1/3?", {"answer": "\\frac{5}{6}"})
RIGHT, WRONG = "It is \\boxed{\\dfrac{5}{6}}.", "It is \\boxed{\\frac{2}{5}}."
APPROVE, REJECT = "Fine. <verify>approve</verify>", "No: add them. <verify>reject</verify>"


def score(task: Task, answer: Any) -> float:
    return asyncio.run(TASKS.score(task, answer))


def test_a_rejected_solution_is_mended() -> None:
    run = check_workflow(SolverVerifier(), TASK, ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": REJECT}))
    assert [act.agent for act, _ in run.turns] == ["solver", "verifier", "solver"]  # the last is not verified
    assert score(TASK, run.answer) == 1.0
    assert WRONG in shown(run.turns[1][0])
    assert all(part in shown(run.turns[2][0]) for part in (TASK.prompt, WRONG, REJECT))


@pytest.mark.parametrize(("unparseable", "acts"), [("approve", 2), ("reject", 3)])
def test_an_unparseable_verdict_follows_the_option_and_is_invalid(unparseable: Any, acts: int) -> None:
    policy = ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": "I approve."})
    run = check_workflow(SolverVerifier(unparseable=unparseable), TASK, policy)
    assert (len(run.turns), run.invalid) == (acts, {("verifier", "0"): "no verdict"})


def test_role_rewards_by_hand() -> None:
    """Solutions and verdicts, and the rewards of each turn, from -0.1 (no answer, no verdict) to 1."""
    rewards = {"solver": solution_right, "verifier": verdict_right}
    for solutions, reviews, wanted in (
        ([WRONG, RIGHT], REJECT, [0.0, 1.0, 1.0]),
        ([RIGHT, WRONG], REJECT, [1.0, 0.0, 0.0]),
        ([WRONG, WRONG], APPROVE, [0.0, 0.0]),
        ([RIGHT, WRONG], APPROVE, [1.0, 1.0]),
        (["5/6", "\\boxed{}"], REJECT, [-0.1, 1.0, -0.1]),
        (["\\boxed{\\frac{10}{12}}", WRONG], "<verify>both</verify>", [1.0, -0.1]),
        (["", RIGHT], "<verify>approve</verify><verify>reject</verify>", [-0.1, -0.1]),
    ):
        policy = ScriptedPolicy({"solver": solutions, "verifier": reviews})
        context = ScriptedContext(SolverVerifier(), TASK, policy, tasks=TASKS, rewards=rewards)
        assert [turn.rewards["role"] for turn in asyncio.run(Independent(1).sample(context)).turns] == wanted, solutions


FILE = Path(__file__).parents[3] / "recipes" / "math" / "boxed_sums.py"
boxed_sums = load_file(read_file(FILE.name, FILE))
SUMS = boxed_sums.BoxedSums(largest=9)


def test_the_tiny_workflow() -> None:
    (task,) = SUMS.generate("train", 1, 3)
    right = f"\\boxed{{{task.data['answer']}}}"
    policy = ScriptedPolicy({"solver": ["sum 3", right], "verifier": "<verify>reject</verify>"})
    run = check_workflow(boxed_sums.TinySolverVerifier(), task, policy)
    assert [shown(act).removeprefix(task.prompt) for act, _ in run.turns] == ["", " solution none", " rejected none"]
    assert asyncio.run(SUMS.score(task, run.answer)) == 1.0


# The tool user and the reasoner: when they stop, what they are shown, and the reward of each act


SUM = Task("sum", "What is 6 * 7?", {"answer": "42"})


def printing(answer: str) -> str:
    return f"```python\nprint({answer})\n```"


def test_it_is_over_as_soon_as_program_and_reasoner_agree() -> None:
    policy = ScriptedPolicy({TOOL_USER: [printing("41"), printing("84 / 2")], REASONER: r"I say \boxed{42}"})
    run = check_workflow(ToolUserReasoner(), SUM, policy)
    assert run.answer == [[TOOL_USER, "41"], [REASONER, "42"], [TOOL_USER, "42.0"], [REASONER, "42"]]
    assert run.proposals == [run.answer[:acts] for acts in range(1, 5)]  # of every act, so that a tree can score it
    seen = [shown(act) for act, _ in run.turns]
    assert "printed:\n41\n" in seen[1]
    assert "a program answered 41, and the reasoner 42" in seen[2]
    assert score(SUM, run.answer) == 1.0


def test_a_team_that_never_agrees_answers_after_the_last_turn() -> None:
    policy = ScriptedPolicy({TOOL_USER: "I have no program", REASONER: r"\boxed{41}"})
    run = check_workflow(ToolUserReasoner(turns=2), SUM, policy)
    assert run.answer == [[TOOL_USER, None], [REASONER, "41"]] * 2
    assert set(run.invalid.values()) == {"no program that prints an answer"}
    assert score(SUM, run.answer) == 0.0


@pytest.mark.parametrize(
    ("program", "answer", "rewards"),
    [
        (printing("42"), r"\boxed{42}", [1.0, 1.0]),
        (printing("41"), r"\boxed{42}", [0.0, 1.0]),
        (printing("42"), "no idea", [1.0, -0.1]),
        ("```python\n1 / 0\n```", r"\boxed{\frac{84}{2}}", [-0.1, 1.0]),
        (printing("1, 42"), r"\boxed{-42}", [1.0, 0.0]),
        (printing("{}[42]"), r"\boxed{42}", [-0.1, 1.0]),  # KeyError: 42
        ("```python\nimport sys\nprint(42)\nsys.exit(1)\n```", r"\boxed{42}", [-0.1, 1.0]),
    ],
)
def test_each_act_is_rewarded_for_its_own_answer(program: str, answer: str, rewards: list[float]) -> None:
    policy = ScriptedPolicy({TOOL_USER: program, REASONER: answer})
    given = {TOOL_USER: own_answer, REASONER: own_answer}
    context = ScriptedContext(ToolUserReasoner(turns=1), SUM, policy, tasks=TASKS, rewards=given)
    assert [turn.rewards["role"] for turn in asyncio.run(Independent(1).sample(context)).turns] == rewards
