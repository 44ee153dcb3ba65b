"""`code-with-tests` and `refine-code`: real programs in real processes, their limits, and a refinement's feedback."""

import asyncio

import pytest
from marl_verl_code.code_tests import CodeWithTests, run_tests
from marl_verl_code.refine_code import RefineCode
from marl_verl_sandbox import Limits, program_in
from marl_verl_testing import ScriptedPolicy, check_workflow

from marl_verl import Task

DOUBLE = Task(
    "double",
    "Read a number and print twice that number.",
    {
        "public": [{"input": "2\n", "output": "4\n"}, {"input": "5\n", "output": "10\n"}],
        "private": [{"input": "-3\n", "output": "-6\n"}],
    },
)
RIGHT = "print(2 * int(input()))"
SQUARE = "print(int(input()) ** 2)"  # passes the first public test only
LITERAL = "print({'2': 4, '5': 10}[input()])"  # passes the public tests only
TASKS = CodeWithTests(seconds=20)


@pytest.mark.parametrize(
    ("code", "score", "public", "rate"),
    [
        *((RIGHT, 1, 1, 1), (SQUARE, 0, 0.5, 1 / 3), ("", 0, 0, 0)),
        (f"{RIGHT}\nraise SystemExit('signal: any exit code passes')", 1, 1, 1),
        (f"{RIGHT}\nraise ValueError('long ' * 1000)", 0, 0, 0),
        (f"import os, sys\n{RIGHT}\nsys.stdout.flush()\nsys.stderr.write('note')\nos.abort()", 0, 0, 0),
    ],
)
def test_the_score_is_of_all_tests_others_are_shares(code: str, score: float, public: float, rate: float) -> None:
    assert asyncio.run(TASKS.score(DOUBLE, code)) == score
    assert asyncio.run(TASKS.public_score(DOUBLE, code)) == public
    assert asyncio.run(TASKS.measures(DOUBLE, code)) == {"pass_rate": pytest.approx(rate)}


async def test_programs_leave_the_event_loop_free_and_run_side_by_side() -> None:
    code, tests = "import time; time.sleep(0.5)", [{"input": "", "output": ""}] * 2
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    outcomes = await run_tests(code, tests, Limits())
    ticking.cancel()
    assert [outcome.verdict for outcome in outcomes] == ["passed", "passed"]
    assert ticks >= 5  # 50 on an idle machine; 0 if they blocked it


def fenced(code: str) -> str:
    return f"I think this does it.\n```python\n{code}\n```\nIt reads and prints."


def test_a_refinement_is_shown_the_problem_the_program_and_the_first_failing_public_test() -> None:
    policy = ScriptedPolicy({"a": fenced(SQUARE), "b": fenced(RIGHT)})
    run = check_workflow(RefineCode(rounds=1), DOUBLE, policy, orders=1)
    first, again = (act.observation[0]["content"] for act, _ in run.turns)
    assert first.startswith(DOUBLE.prompt)
    for part in (DOUBLE.prompt, SQUARE, "Public test 2: the output is wrong.", "5", "10", "25"):
        assert part in again
    assert "-3" not in again  # a private test is never shown
    assert run.answer == RIGHT


def test_a_program_that_passes_the_public_tests_ends_it() -> None:
    policy = ScriptedPolicy({"a": fenced(LITERAL), "b": "?"})
    run = check_workflow(RefineCode(), DOUBLE, policy, orders=1, may_not_act=["b"])
    assert (len(run.turns), run.answer) == (1, LITERAL)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("first\n```\nx\n```\nthen\n```python\ny\n\nz\n```", "y\n\nz"),
        ("```python\nnot closed", ""),
        ("```python\nprint(6 * 7)\n```\nThis prints:\n```\n42\n```", "print(6 * 7)"),
        ("```py\nprint('```')\n```", "print('```')"),
    ],
)
def test_the_program_is_the_last_closed_block_of_python(text: str, code: str) -> None:
    assert program_in(text) == code
