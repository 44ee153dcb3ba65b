"""Mathematics: final answers, and the solver and the verifier on made rows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from marl_verl_dr_mas.math_answers import boxed, normal, same
from marl_verl_dr_mas.mathematics import MathSolverVerifier, MathTasks
from marl_verl_dr_mas.verdict import clipped, verdict

from marl_verl import MarlError, Task
from marl_verl.options import build
from marl_verl.sampling import Independent
from marl_verl.testing import ScriptedPolicy, check_sampler, check_workflow, shown

TASKS = MathTasks()
TASK = Task("t", "What is 1/2 + 1/3?", {"answer": "\\frac{5}{6}"})
RIGHT, WRONG = "It is \\boxed{\\dfrac{5}{6}}.", "It is \\boxed{\\frac{2}{5}}."
APPROVE, REJECT = "Fine. <verify>approve</verify>", "No: add them. <verify>reject</verify>"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("\\boxed{5}", "5"),
        ("so \\boxed{4}, no: \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"),
        ("\\fbox{7} and \\fboxed{8}", "8"),
        ("\\boxed{\\sqrt{x^{2}}}", "\\sqrt{x^{2}}"),
        ("\\boxed{3} then cut off \\boxed{\\frac{1}{", "3"),
        ("\\boxed{}", ""),
        ("boxed{5}", None),
        ("", None),
    ],
)
def test_the_answer_is_what_the_last_whole_box_has(text: str, found: str | None) -> None:
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("\\dfrac{5}{6}", "\\frac{5}{6}"),
        ("\\frac12", "0.5"),
        ("-1/2", "-\\frac{1}{2}"),
        ("-\\frac{-1}{2}", "0.5"),
        ("1,234,567", "1234567"),
        ("50\\%", "50"),
        ("$x = 7$", "7"),
        ("90^\\circ", "90"),
        ("\\left( 1, 2 \\right)", "(1,2)"),
        ("5 \\text{ cm}", "5cm"),
        ("3.", "3"),
        ("3.50", "3.5"),
    ],
)
def test_the_same_answers(one: str, other: str) -> None:
    assert same(one, other)
    assert same(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("5", "6"),
        ("1/0", "0"),
        ("", ""),
        ("(1,234)", "1234"),
        ("x", "y"),
        ("0.333", "1/3"),
        ("-5", "5"),
        ("(1,2)", "(2,1)"),
        ("2\\sqrt{2}", "\\sqrt{8}"),  # equal, and not seen: documented
    ],
)
def test_other_answers(one: str, other: str) -> None:
    assert not same(one, other)
    assert not same(other, one)


FORMULA = st.text(alphabet="\\boxedfrac{}0123456789,./-=x ^%$", max_size=20)


@given(FORMULA, FORMULA)
def test_any_two_texts_can_be_compared(one: str, other: str) -> None:
    assert same(one, other) == same(other, one)
    assert same(one, one) == bool(normal(one))
    found = boxed(f"{other} \\boxed{{7{one.replace('{', '').replace('}', '')}}}")
    assert found is not None
    assert found.startswith("7")


def test_scores() -> None:
    assert [TASKS.score(TASK, each) for each in (RIGHT, WRONG, "5/6", "")] == [1.0, 0.0, 0.0, 0.0]
    assert [TASKS.public_score(TASK, each) for each in (RIGHT, WRONG, "5/6", "\\boxed{}")] == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(MarlError, match="dr-mas-math scores a text, got int"):
        TASKS.score(TASK, 5)


def test_a_row_without_an_answer_raises() -> None:
    with pytest.raises(MarlError, match=r"task 'q' has no text 'data\.answer' to compare with, it has 5"):
        TASKS.score(Task("q", "?", {"answer": 5}), RIGHT)


def test_there_are_no_generated_problems() -> None:
    with pytest.raises(NotImplementedError, match=r"set marl\.task\.train_file"):
        TASKS.generate("train", 1, 0)


# verdicts


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("<verify>approve</verify>", "approve"),
        ("x <VERIFY> Reject </verify> y", "reject"),
        ("<verify>reject</verify> again <verify>reject</verify>", "reject"),
        ("<verify>reject</verify> or <verify>approve</verify>", None),
        ("<verify>maybe</verify>", None),
        ("approve", None),
        ("", None),
    ],
)
def test_a_verdict_is_one_word_in_tags(text: str, word: str | None) -> None:
    assert verdict(text, ("approve", "reject")) == word


@given(st.text(max_size=60), st.integers(8, 60))
def test_a_clipped_text_fits_and_keeps_its_ends(text: str, most: int) -> None:
    short = clipped(text, most)
    assert len(short) <= max(most, 7)
    assert short == text or (len(text) > most and short[-1] == text[-1])


# the workflow


def test_a_rejected_solution_is_mended() -> None:
    policy = ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": REJECT})
    run = check_workflow(MathSolverVerifier(), TASK, policy)
    assert [act.agent for act, _ in run.turns] == ["solver", "verifier", "solver"]  # the last is not verified
    assert TASKS.score(TASK, run.answer) == 1.0
    assert WRONG in shown(run.turns[1][0])
    seen = shown(run.turns[2][0])
    assert TASK.prompt in seen
    assert WRONG in seen
    assert REJECT in seen


def test_an_approved_solution_is_the_answer() -> None:
    run = check_workflow(MathSolverVerifier(), TASK, ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": APPROVE}))
    assert (len(run.turns), run.answer, run.invalid) == (2, WRONG, {})


@pytest.mark.parametrize(("unparseable", "acts"), [("approve", 2), ("reject", 3)])
def test_an_unparseable_verdict_follows_the_option_and_is_invalid(unparseable: Any, acts: int) -> None:
    policy = ScriptedPolicy({"solver": [WRONG, RIGHT], "verifier": "I approve."})
    run = check_workflow(MathSolverVerifier(unparseable=unparseable), TASK, policy)
    assert len(run.turns) == acts
    assert run.invalid == {("verifier", "0"): "no verdict"}


def test_a_solution_without_a_box_is_marked() -> None:
    run = check_workflow(MathSolverVerifier(), TASK, ScriptedPolicy({"solver": ["5/6", RIGHT], "verifier": REJECT}))
    assert run.invalid == {("solver", "0"): "no boxed answer"}


def test_long_texts_are_shown_in_part() -> None:
    long = "step. " * 1000 + RIGHT
    policy = ScriptedPolicy({"solver": long, "verifier": "thought. " * 1000 + REJECT})
    run = check_workflow(MathSolverVerifier(kept=200), TASK, policy)
    assert all(len(shown(act)) < 1000 for act, _ in run.turns)
    assert RIGHT in shown(run.turns[1][0])  # answer and verdict stand at the end
    assert REJECT in shown(run.turns[2][0])
    assert run.answer == long


def test_a_single_agent_is_one_round() -> None:
    run = check_workflow(MathSolverVerifier(rounds=1), TASK, ScriptedPolicy({"solver": RIGHT}))
    assert [act.agent for act, _ in run.turns] == ["solver"]
    for option in ("rounds", "kept"):
        with pytest.raises(MarlError, match=f"o: {option} must be 1 or more, got 0"):
            build(MathSolverVerifier, {option: 0}, "o")


def test_the_sampler_keeps_its_promises_on_it() -> None:
    policy = ScriptedPolicy(
        {
            "solver": lambda act, session, candidate: RIGHT if (session + act.turn) % 2 else WRONG,
            "verifier": lambda act: REJECT if WRONG in shown(act) else APPROVE,
        }
    )
    sample = check_sampler(Independent(4), MathSolverVerifier(), TASK, policy, tasks=TASKS)
    assert [len(episode.turns) for episode in sample.episodes] == [3, 2, 3, 2]
    assert all(episode.success for episode in sample.episodes)
