"""The solver and the verifier: what they are shown, when they stop, and their role rewards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from marl_verl_math.solver_verifier import SolverVerifier, solution_right, verdict_right
from marl_verl_math.tasks import MathTasks
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_sampler, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent

TASKS = MathTasks()
TASK = Task("t", "What is 1/2 + 1/3?", {"answer": "\\frac{5}{6}"})
RIGHT, WRONG = "It is \\boxed{\\dfrac{5}{6}}.", "It is \\boxed{\\frac{2}{5}}."
APPROVE, REJECT = "Fine. <verify>approve</verify>", "No: add them. <verify>reject</verify>"


def score(task: Task, answer: Any) -> float:
    return asyncio.run(TASKS.score(task, answer))


def test_a_rejected_solution_is_mended() -> None:
    policy = ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": REJECT})
    run = check_workflow(SolverVerifier(), TASK, policy)
    assert [act.agent for act, _ in run.turns] == ["solver", "verifier", "solver"]  # the last is not verified
    assert score(TASK, run.answer) == 1.0
    assert WRONG in shown(run.turns[1][0])
    seen = shown(run.turns[2][0])
    assert TASK.prompt in seen
    assert WRONG in seen
    assert REJECT in seen


def test_an_approved_solution_is_the_answer() -> None:
    run = check_workflow(SolverVerifier(), TASK, ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": APPROVE}))
    assert (len(run.turns), run.answer, run.invalid) == (2, WRONG, {})


@pytest.mark.parametrize(("unparseable", "acts"), [("approve", 2), ("reject", 3)])
def test_an_unparseable_verdict_follows_the_option_and_is_invalid(unparseable: Any, acts: int) -> None:
    policy = ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": "I approve."})
    run = check_workflow(SolverVerifier(unparseable=unparseable), TASK, policy)
    assert len(run.turns) == acts
    assert run.invalid == {("verifier", "0"): "no verdict"}


def test_a_solution_without_a_box_is_marked() -> None:
    run = check_workflow(SolverVerifier(), TASK, ScriptedPolicy({"solver": ["5/6", RIGHT], "verifier": REJECT}))
    assert run.invalid == {("solver", "0"): "no boxed answer"}


def test_long_texts_are_shown_in_part() -> None:
    long = "step. " * 1000 + RIGHT
    policy = ScriptedPolicy({"solver": long, "verifier": "thought. " * 1000 + REJECT})
    run = check_workflow(SolverVerifier(kept=200), TASK, policy)
    assert all(len(shown(act)) < 1000 for act, _ in run.turns)
    assert RIGHT in shown(run.turns[1][0])  # answer and verdict stand at the end
    assert REJECT in shown(run.turns[2][0])
    assert run.answer == long


def test_a_single_agent_is_one_round() -> None:
    run = check_workflow(SolverVerifier(rounds=1), TASK, ScriptedPolicy({"solver": RIGHT}))
    assert [act.agent for act, _ in run.turns] == ["solver"]


def test_the_sampler_keeps_its_promises_on_it() -> None:
    policy = ScriptedPolicy(
        {
            "solver": lambda act, session, candidate: RIGHT if (session + act.turn) % 2 else WRONG,
            "verifier": lambda act: REJECT if WRONG in shown(act) else APPROVE,
        }
    )
    sample = check_sampler(Independent(4), SolverVerifier(), TASK, policy, tasks=TASKS)
    assert [len(episode.turns) for episode in sample.episodes] == [3, 2, 3, 2]
    assert all(episode.success for episode in sample.episodes)


def test_role_rewards_by_hand() -> None:
    """Solutions and verdicts, and the rewards of each turn, from -0.1 (no answer, no verdict) to 1."""
    rewards = {"solver": solution_right, "verifier": verdict_right}
    for solutions, reviews, wanted in (
        ([WRONG, RIGHT], REJECT, [0.0, 1.0, 1.0]),
        ([RIGHT, WRONG], REJECT, [1.0, 0.0, 0.0]),
        ([WRONG, WRONG], APPROVE, [0.0, 0.0]),
        ([RIGHT, WRONG], APPROVE, [1.0, 1.0]),
        (["5/6", "\\boxed{}"], REJECT, [-0.1, 1.0, -0.1]),
        ([RIGHT, RIGHT], "approve", [1.0, -0.1]),
        (["\\boxed{0.8333333333}", RIGHT], REJECT, [1.0, 0.0, 1.0]),
        (["\\boxed{\\frac{10}{12}}", WRONG], "<verify>both</verify>", [1.0, -0.1]),
        (["\\boxed{5}", "\\boxed{9^{9^{9}}}"], REJECT, [0.0, 1.0, 0.0]),
        (["", RIGHT], "<verify>approve</verify><verify>reject</verify>", [-0.1, -0.1]),
    ):
        policy = ScriptedPolicy({"solver": solutions, "verifier": reviews})
        context = ScriptedContext(SolverVerifier(), TASK, policy, tasks=TASKS, rewards=rewards)
        sample = asyncio.run(Independent(1).sample(context))
        assert [turn.rewards["role"] for turn in sample.turns] == wanted, solutions
