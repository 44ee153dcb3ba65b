"""The code tasks: every level of the reward on syntax trees, the feedback, and the workflow."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from marl_verl_code.assertions import Budget, run_assertions, share
from marl_verl_code.code_levels import (
    calls,
    code_in,
    compiles,
    function,
    joined,
    levels,
    returns,
    used,
    wrapper,
)
from marl_verl_code.joint_code import JointCode, TwoCoders, describe_feedback, judged, sees

from marl_verl import MarlError, Task
from marl_verl.testing import ScriptedPolicy, check_workflow

HELPER = "def aux(x):\n    return x + 1\n"
MAIN = "def solve(x):\n    y = aux(x)\n    return y * 2\n"
TASK = Task(
    "t",
    'def solve(x):\n    """Twice the number after x."""\n',
    {"entry": "solve", "tests": ["assert candidate(1) == 4", "assert solve(0) == 2"]},
)


def main(body: str, before: str = "") -> ast.FunctionDef:
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    found = function(f"{before}def solve(x):\n{indented}\n", "solve")
    assert isinstance(found, ast.FunctionDef)
    return found


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\ndef f(): pass\n```", "def f(): pass"),
        ("Here:\n```\na = 1\n```\nand\n```py\nb = 2\n```", "a = 1\n\nb = 2"),
        ("  a = 1\n", "a = 1"),
        ("```python\nnever ended", "never ended"),
    ],
)
def test_code_in_an_answer(text: str, code: str) -> None:
    assert code_in(text) == code


def test_a_function_is_found_on_the_top_level_only() -> None:
    assert function("class A:\n    def f(self): return 1", "f") is None
    assert function("def g():\n    def f(): return 1", "f") is None
    assert function("def f(: return", "f") is None
    assert function("\0", "f") is None
    found = function("def f(): return 1\ndef f(): pass", "f")  # the last is the one that counts
    assert not returns(found)


def test_returns_are_its_own_and_have_a_value() -> None:
    assert returns(function(HELPER, "aux"))
    assert returns(function("def aux(x):\n    if x:\n        return x", "aux"))
    assert returns(function("def aux(x):\n    yield x", "aux"))
    assert not returns(function("def aux(x):\n    return", "aux"))
    assert not returns(function("def aux(x):\n    def inner():\n        return 1", "aux"))
    assert not returns(None)


def test_what_parses_may_still_not_compile() -> None:
    assert compiles(HELPER)
    assert not compiles("return 1")
    assert not compiles("def f(:")


@pytest.mark.parametrize(
    ("body", "called"),
    [
        ("return aux(x)", True),
        ("return [aux(i) for i in x]", True),
        ("return aux", False),
        ("return self.aux(x)", False),
        ("return 'aux(x)'  # aux(x)", False),
        ("def inner():\n    return aux(1)\nreturn inner()", True),
    ],
)
def test_calls_are_calls(body: str, called: bool) -> None:
    assert bool(list(calls(main(body), "aux"))) == called


@pytest.mark.parametrize(
    ("body", "only"),
    [
        ("return aux(x)", True),
        ("'''Docs.'''\nreturn aux(x)", True),
        ("y = aux(x)\nreturn y", True),
        ("y: int = aux(x)\nreturn y", True),
        ("y = aux(x)\nreturn y + 1", False),
        ("return aux(x) + 1", False),
        ("if x:\n    return aux(x)\nreturn 0", False),
        ("y = 0\nreturn aux(y)", False),
    ],
)
def test_wrappers(body: str, only: bool) -> None:
    assert wrapper(main(body), "aux") == only


@pytest.mark.parametrize(
    ("body", "goes_somewhere"),
    [
        ("return aux(x) + 1", True),
        ("y = aux(x)\nreturn y", True),
        ("aux(x)\nreturn 1", False),  # a plain call, which a regular expression for assignments misses
        ("y = aux(x)\nreturn 1", False),
        ("_ = aux(x)\nz = aux(x)\nreturn z", True),
        ("a, b = aux(x)\nreturn b", True),
        ("y: int = aux(x)\nreturn 1", False),
        ("d = {}\nd['k'] = aux(x)\nreturn d", True),
        ("if aux(x):\n    return 1\nreturn 0", True),
        ("print(aux(x))\nreturn 1", True),
        ("y = 0\ny += aux(x)\nreturn y", True),
    ],
)
def test_a_result_is_used_or_ignored(body: str, goes_somewhere: bool) -> None:
    assert used(main(body), "aux") == goes_somewhere


def total(helper: str, main_code: str, passed: float = 1.0) -> float:
    return sum(levels(helper, main_code, "aux", "solve", passed).values())


def test_the_levels_in_order() -> None:
    assert levels(HELPER, MAIN, "aux", "solve", 1.0) == {
        "helper": 0.4,
        "main": 0.6,
        "syntax": 0.5,
        "tests": 1.0,
        "calls": 0.5,
        "substance": 1.0,
        "ignored": 0.0,
    }
    assert total(HELPER, MAIN) == pytest.approx(4.0)
    assert total(HELPER, MAIN, 0.5) == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("helper", "main_code", "passed", "reward"),
    [
        (HELPER, "x = 1", 1.0, 0.4),  # no main function: it ends
        ("", "x = 1", 1.0, 0.0),
        ("", "", 1.0, 0.0),
        ("def aux(:", MAIN, 1.0, 0.6),  # together they do not compile
        ("", MAIN, 0.0, 1.1),
        (HELPER, MAIN, 0.0, 1.5),  # no test passes: the rest does not count
        (HELPER, "def solve(x):\n    return x", 1.0, 2.5),
        (HELPER, "def solve(x):\n    return aux(x)", 1.0, 3.0),
        (HELPER, "def solve(x):\n    aux(x)\n    return 1 + x", 1.0, 3.5),
        (HELPER, "def aux(x):\n    return x\n\n" + MAIN, 1.0, 2.5),  # calls a helper of its own
    ],
)
def test_what_answers_earn(helper: str, main_code: str, passed: float, reward: float) -> None:
    assert total(helper, main_code, passed) == pytest.approx(reward)


def test_one_coder_is_judged_by_the_same_levels() -> None:
    both = f"{HELPER}\n{MAIN}"
    assert joined(both, both) == both
    assert total(both, both) == pytest.approx(4.0)


# the task set


def test_the_task_set_runs_the_tests() -> None:
    tasks = JointCode()
    assert tasks.score(TASK, {"helper": HELPER, "main": MAIN}) == pytest.approx(4.0)
    assert tasks.success(TASK, {"helper": HELPER, "main": MAIN})
    half = {"helper": HELPER, "main": "def solve(x):\n    y = aux(x)\n    return 4 if y else 0\n"}
    assert tasks.score(TASK, half) == pytest.approx(3.5)
    assert not tasks.success(TASK, half)
    assert JointCode(enough=0.5).success(TASK, half)
    assert tasks.public_score(TASK, half) == 1.0
    assert tasks.public_score(TASK, {"helper": "", "main": MAIN}) == 0.0


def test_a_loop_without_end_costs_its_time_and_no_more() -> None:
    tasks = JointCode(test_seconds=0.3, seconds=1.0)
    answer = {"helper": HELPER, "main": "def solve(x):\n    while aux(x):\n        pass\n"}
    assert tasks.score(TASK, answer) == pytest.approx(1.5)


@pytest.mark.parametrize("answer", ["code", {"helper": "x"}, {"helper": 1, "main": "y"}])
def test_another_answer_is_a_mistake(answer: Any) -> None:
    with pytest.raises(MarlError, match="joint-code scores two codes"):
        JointCode().score(TASK, answer)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"tests": ["assert 1"]}, "task 'x' has no 'entry' in its data"),
        ({"entry": "aux", "tests": ["assert 1"]}, "the name of a function other than 'aux'"),
        ({"entry": "f"}, "task 'x' has no list 'tests' in its data"),
        ({"entry": "f", "tests": "assert 1"}, "task 'x' has no list 'tests' in its data"),
    ],
)
def test_a_task_without_entry_or_tests_is_a_mistake(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MarlError, match=sentence):
        judged(Task("x", "p", data), HELPER, MAIN, Budget())


def test_options_are_checked() -> None:
    with pytest.raises(MarlError, match="'test_seconds' must be above 0 and at most 'seconds', got 20"):
        JointCode(test_seconds=20)
    with pytest.raises(MarlError, match="'megabytes' must be at least 64, got 1"):
        TwoCoders(megabytes=1)
    with pytest.raises(MarlError, match="turns must be at least 1, got 0"):
        TwoCoders(turns=0)


# feedback and workflow

LIMITS = (10.0, 3.0, 512)


def test_feedback_in_levels_names_the_first_test_that_fails() -> None:
    wrong = "def solve(x):\n    return aux(x)\n"
    feedback = describe_feedback(TASK, HELPER, wrong, "levels", LIMITS)
    assert feedback.splitlines() == [
        "aux is defined and returns something.",
        "solve is defined.",
        "Together they compile.",
        "0 of 2 tests pass.",
        "The first that fails: AssertionError: ",
    ]
    assert "solve is only a wrapper around aux." in describe_feedback(
        TASK, "def aux(x):\n    return 2 * x + 2\n", wrong, "levels", LIMITS
    )
    assert "solve ignores what aux returns." in describe_feedback(
        TASK, HELPER, "def solve(x):\n    aux(x)\n    return 2 * x + 2\n", "levels", LIMITS
    )
    assert (
        describe_feedback(TASK, "", "x = 1", "levels", LIMITS)
        == "aux is missing, or returns nothing.\nsolve is missing."
    )


def test_feedback_passed_has_only_that() -> None:
    assert describe_feedback(TASK, HELPER, MAIN, "passed", LIMITS) == "All tests pass."
    assert describe_feedback(TASK, HELPER, "", "passed", LIMITS) == "Not all tests pass."


@pytest.mark.parametrize(
    ("shows", "tests", "passed"), [("own", 1, "0 of 1"), ("both", 2, "0 of 2"), ("own", None, "0 of 2")]
)
def test_agents_see_their_own_code_or_both_and_the_levels_of_the_first_tests(
    shows: Any, tests: int | None, passed: str
) -> None:
    poor = "def solve(x):\n    return 0"
    policy = ScriptedPolicy({"helper": f"```python\n{HELPER}```", "main": [poor, MAIN]})
    run = check_workflow(TwoCoders(shows=shows, feedback_tests=tests), TASK, policy)
    assert run.answer == {"helper": HELPER.strip(), "main": MAIN.strip()}
    for act, _ in run.turns[2:]:
        seen = act.observation[-1]["content"]
        assert (HELPER.strip() in seen) == (shows == "both" or act.agent == "helper")
        assert (poor in seen) == (shows == "both" or act.agent == "main")
        assert f"{passed} tests pass." in seen
    assert not run.invalid
    first = [act.observation[-1]["content"] for act, _ in run.turns[:2]]
    assert all(TASK.prompt.strip() in seen and "wrote before" not in seen for seen in first)


def test_plain_feedback_shows_the_codes_and_nothing_else() -> None:
    policy = ScriptedPolicy({"helper": HELPER, "main": MAIN})
    run = check_workflow(TwoCoders(feedback="plain"), TASK, policy)
    assert not list(run.journal.calls())
    assert "tests" not in run.turns[3][0].observation[-1]["content"].lower()


def test_a_coder_without_the_function_is_marked() -> None:
    run = check_workflow(TwoCoders(turns=1), TASK, ScriptedPolicy({"helper": "I cannot", "main": MAIN}))
    assert list(run.invalid) == [("helper", "0")]


def test_one_coder_writes_both_and_sees_its_code_once() -> None:
    both = f"{HELPER}\n{MAIN}"
    run = check_workflow(TwoCoders(), TASK, ScriptedPolicy({"coder": both}))
    assert JointCode().score(TASK, run.answer) == pytest.approx(4.0)
    assert run.turns[1][0].observation[-1]["content"].count("def aux") == 1
    assert "`aux`" in sees(TASK, "coder", {}, "")


def test_other_teams_raise() -> None:
    with pytest.raises(MarlError, match="two-coders needs the agents 'helper' and 'main', or 'coder': got main"):
        check_workflow(TwoCoders(), TASK, ScriptedPolicy({"main": MAIN}))


# assertions

QUICK = Budget(seconds=20.0, test_seconds=10.0)


def run(program: str, *tests: str, setup: str = "", budget: Budget = QUICK) -> list[tuple[bool, str]]:
    return [(each.passed, each.error) for each in run_assertions(program, "f", setup, tests, budget)]


def test_every_test_has_its_outcome() -> None:
    found = run("def f(x): return x + 1", "assert f(1) == 2", "assert candidate(1) == 3, 'no'", "f(None)")
    assert [passed for passed, _ in found] == [True, False, False]
    assert found[1][1] == "AssertionError: no"
    assert found[2][1].startswith("TypeError: unsupported operand")
    assert share(run_assertions("def f(x): return x", "f", "", ("assert f(1)", "assert f(0)"), QUICK)) == 0.5
    assert share(()) == 0.0


def test_setup_runs_before_the_tests() -> None:
    assert run("def f(x): return x", "assert f(K) == 3", setup="K = 3") == [(True, "")]
    assert run("def f(x): return x", "assert True", setup="raise OSError('gone')") == [(False, "OSError: gone")]


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("def f(:", "SyntaxError"),
        ("g = 1", "NameError: it has no 'f'"),
        ("raise ValueError('at once')", "ValueError: at once"),
        ("raise SystemExit(0)", "SystemExit"),
        ("import os\nos._exit(3)", "the program ended its process: exit code 3"),
    ],
)
def test_a_program_that_does_not_load_fails_every_test(program: str, message: str) -> None:
    found = run(program, "assert True", "assert True")
    assert [passed for passed, _ in found] == [False, False]
    assert all(error.startswith(message) for _, error in found)


def test_a_loop_ends_and_the_tests_after_it_run_while_there_is_time() -> None:
    program = "def f(x):\n    while x: pass"
    budget = Budget(seconds=20.0, test_seconds=0.5)
    assert run(program, "f(1)", "assert f(0) is None", budget=budget) == [(False, "longer than 0.5 s"), (True, "")]
    found = run(program, "f(1)", "f(2)", "f(3)", budget=Budget(seconds=0.6, test_seconds=0.5))
    assert found[2] == (False, "the tests took longer than 0.6 s")


def test_the_same_question_is_answered_once() -> None:
    program = "import uuid\nmark = uuid.uuid4().hex\ndef f(x): return mark"
    (first,) = run(program, "assert f(1) == 1, f(1)")
    assert not first[0]
    assert len(first[1]) == len("AssertionError: ") + 32
    assert run(program, "assert f(1) == 1, f(1)") == [first]  # another run would have another mark
