"""The code tasks: every level of the reward on syntax trees, the feedback, and the workflow."""

from __future__ import annotations

import json
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
from marl_verl_code import joint_code
from marl_verl_code.code_levels import code_in, function, levels
from marl_verl_code.joint_code import (
    JointCode,
    TwoCoders,
    describe_feedback,
    judged,
    run_assertions,
    sees,
    share,
)
from marl_verl_sandbox import Limits, Outcome
from marl_verl_testing import ScriptedPolicy, check_workflow

from marl_verl import MarlError, Task

GOLDEN = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards"
SECONDS = 0.5
HELPER = "def aux(x):\n    return x + 1\n"
MAIN = "def solve(x):\n    y = aux(x)\n    return y * 2\n"
TASK = Task(
    "t",
    'def solve(x):\n    """Twice the number after x."""\n',
    {"entry": "solve", "tests": ["assert candidate(1) == 4", "assert solve(0) == 2"]},
)


CASES = json.loads((GOLDEN / "code_levels.json").read_text())["cases"]


class InProcess:
    """Runs tests in this process; one that needs more than `SECONDS` of processor time takes too long."""

    def holds(self, program: str, entry: str, setup: str, test: str, limits: Limits) -> Outcome:
        def stop(*_: Any) -> None:
            raise TimeoutError

        names: dict[str, Any] = {}
        tests: dict[str, Any] = {}
        before = signal.signal(signal.SIGVTALRM, stop)
        try:
            exec(f"{setup}\n", tests)
            exec(program, names)
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            exec(test, tests | {"candidate": names[entry]})
        except TimeoutError:
            return Outcome("timeout")
        except Exception as error:  # noqa: BLE001
            return Outcome("error", error=repr(error))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
        return Outcome("passed")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_the_authors_rewards(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs; the intended value where theirs is a bug."""
    monkeypatch.setattr(joint_code, "current", InProcess)
    answer, expected = case["inputs"], case["expected"]
    task = Task("t", answer["prompt"], {"entry": answer["entry"], "tests": answer["tests"]})
    rewards, outcomes = judged(task, answer["helper"], answer["main"], Limits(7.0))
    assert sum(rewards.values()) == pytest.approx(case.get("intended_total", expected["total"]))
    if not case["authors_bug"]:
        names = ("helper", "main", "syntax", "tests", "calls", "substance", "ignored")
        assert {**dict.fromkeys(names, 0.0), **rewards} == pytest.approx({name: expected[name] for name in names})
        assert sum(outcome.passed for outcome in outcomes) == expected["tests_passed"]
        assert len(outcomes) == expected["tests_counted"]
        rate = JointCode(seconds=7.0).measures(task, {"helper": answer["helper"], "main": answer["main"]})["pass_rate"]
        assert rate == pytest.approx(expected["tests_passed"] / max(expected["tests_counted"], 1))
        assert sum(outcome == Outcome("timeout") for outcome in outcomes) == expected["timeouts"]


AUX_ONLY = "def aux(x):\n    return x + 1"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"```python\n{AUX_ONLY}\n```\nIt returns more.", AUX_ONLY),
        ("class A:\n    def aux(x):\n        return x + 1\n    y = 1\n", AUX_ONLY),
        (f"import os\n\n{AUX_ONLY}\n\nprint(aux(1))", AUX_ONLY),
        (f"def aux(x):\n    pass\n\n{AUX_ONLY}", AUX_ONLY),
        (
            'def aux(x):\n    """Docs\nat the left"""\n    return x',
            'def aux(x):\n    """Docs\nat the left"""\n    return x',
        ),
        ("def aux(\n    x,\n) -> int:\n    return (\n1\n)\ny = 2", "def aux(\n    x,\n) -> int:\n    return (\n1\n)"),
        ("def aux(x):\n    y = x\n# why\n    return y\nz = 1", "def aux(x):\n    y = x\n# why\n    return y"),
        ("def aux(x):\n    return (x\nThe bracket is open", "def aux(x):\n    return (x"),
        ("The function aux(x) returns x.", ""),
        ("def auxiliary(x):\n    return x", ""),
    ],
)
def test_of_an_answer_the_function_is_kept(text: str, kept: str) -> None:
    assert function(text, "aux").rstrip() == kept
    assert function(code_in(text), "aux").rstrip() == kept


@pytest.mark.parametrize(
    ("body", "levels_after_tests"),
    [
        ("return aux(x) * aux(x)", [0.5, 0.0, 0.0]),  # one line: a wrapper, whatever it computes
        ("return sum(\n    aux(i)\n    for i in x\n)", [0.5, 1.0, 0.0]),
        ('"""Docs.\n\nOf two lines."""\n# a comment\nreturn aux(x)  # done', [0.5, 0.0, 0.0]),
        ("y = aux(x) + 1\nreturn y", [0.5, 0.0, 0.0]),
        ("y = 1 + aux(x)\nreturn y", [0.5, 1.0, 0.0]),
        ("y = aux(x)\nreturn y + 1", [0.5, 1.0, 0.0]),
        ("y = 0\naux(x)\ny = aux(y)\nreturn y", [0.5, 1.0, -0.5]),  # one call that is lost is enough
        ("print(aux(x))\nreturn 1", [0.5, 1.0, 0.0]),
        ("return f'{aux(x)}' + ''", [0.5, 0.0, 0.0]),
        ("return 'aux(x)'", [0.0]),
        ("return self.aux(x)", [0.0]),
    ],
)
def test_calls_wrappers_and_lost_values(body: str, levels_after_tests: list[float]) -> None:
    text = "def solve(x):\n" + textwrap.indent(body, "    ") + "\n"
    assert list(levels(HELPER, text, "aux", True, 1.0).values())[4:] == levels_after_tests


@pytest.mark.parametrize(
    ("helper", "passed", "reward"),
    [("", 1.0, 2.1), ("def aux(x):\n    x", 1.0, 3.6), (HELPER, None, 1.5), (HELPER, 0.0, 1.5)],
)
def test_levels_without_a_helper_a_return_or_tests(helper: str, passed: float | None, reward: float) -> None:
    assert sum(levels(helper, MAIN, "aux", True, passed).values()) == pytest.approx(reward)


def test_different_tests_that_name_the_function_count() -> None:
    tests = ["assert True", "assert candidate(1) == 4", "assert candidate(1) == 4", "assert solve(0) == 2"]
    assert len(judged(Task("t", "", {"entry": "solve", "tests": tests}), HELPER, MAIN, Limits())[1]) == 2
    assert sum(judged(Task("t", "", {"entry": "solve", "tests": []}), HELPER, MAIN, Limits())[0].values()) == 1.5
    with pytest.raises(MarlError, match="task 't' has no test that calls 'solve' or 'candidate'"):
        JointCode().check(Task("t", "", {"entry": "solve", "tests": tests[:1]}))


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


# feedback and workflow

LIMITS = (10.0, 512)


def test_feedback_in_levels_names_the_first_test_that_fails() -> None:
    wrong = "def solve(x):\n    return aux(x)\n"
    feedback = describe_feedback(TASK, HELPER, wrong, "levels", LIMITS)
    assert feedback.splitlines() == [
        "aux is defined and returns something.",
        "solve is defined and returns something.",
        "Together they parse.",
        "0 of 2 tests pass.",
        "The first that fails: AssertionError: ",
    ]
    lost = describe_feedback(TASK, HELPER, "def solve(x):\n    aux(x)\n    return 2 * x + 2\n", "levels", LIMITS)
    assert "solve ignores what aux returns." in lost
    assert describe_feedback(TASK, HELPER, MAIN, "passed", LIMITS) == "All tests pass."


@pytest.mark.parametrize(
    ("shows", "tests", "passed"),
    [("own", 1, "0 of 1"), ("both", 2, "0 of 2"), ("other", 1, "0 of 1"), ("own", None, "0 of 2")],
)
def test_agents_see_their_own_code_or_others_and_the_levels_of_the_first_tests(
    shows: Any, tests: int | None, passed: str
) -> None:
    poor = "def solve(x):\n    return 0"
    policy = ScriptedPolicy({"helper": f"```python\n{HELPER}```", "main": [poor, MAIN]})
    run = check_workflow(TwoCoders(shows=shows, feedback_tests=tests), TASK, policy)
    assert run.answer == {"helper": HELPER.strip(), "main": MAIN.strip()}
    for act, _ in run.turns[2:]:
        seen = act.observation[-1]["content"]
        assert (HELPER.strip() in seen) == (shows == "both" or (act.agent == "helper") == (shows == "own"))
        assert (poor in seen) == (shows == "both" or (act.agent == "main") == (shows == "own"))
        assert f"{passed} tests pass." in seen
    assert not run.invalid
    first = [act.observation[-1]["content"] for act, _ in run.turns[:2]]
    assert all(TASK.prompt.strip() in seen and "wrote before" not in seen for seen in first)


BASELINES: dict[str, dict[str, Any]] = {
    "parallel": {"turns": 1},
    "pipeline": {"turns": 1, "order": "sequential"},
    "discussion": {"feedback": "plain", "shows": "other"},
}


@pytest.mark.parametrize(
    ("baseline", "seen", "answer"),
    [
        ("parallel", {("helper", 0): [], ("main", 0): []}, 0),
        ("pipeline", {("helper", 0): [], ("main", 0): ["helper 0"]}, 0),
        (
            "discussion",
            {("helper", 0): [], ("main", 0): [], ("helper", 1): ["main 0"], ("main", 1): ["helper 0"]},
            1,
        ),
    ],
)
def test_prompted_baselines(baseline: str, seen: dict[tuple[str, int], list[str]], answer: int) -> None:
    """Whose code each coder sees, and whose the answer has: the last of each; nothing is tested in between."""
    names = {"helper": "aux", "main": "solve"}
    written = {
        f"{agent} {turn}": f"def {name}(x):\n    return x + {turn}1" for agent, name in names.items() for turn in (0, 1)
    }
    policy = ScriptedPolicy({agent: [written[f"{agent} {turn}"] for turn in (0, 1)] for agent in names})
    run = check_workflow(TwoCoders(**BASELINES[baseline]), TASK, policy)
    assert run.answer == {agent: written[f"{agent} {answer}"] for agent in names}
    turns = dict.fromkeys(names, 0)
    shown = {}
    for act, _ in run.turns:
        text = act.observation[-1]["content"]
        shown[act.agent, turns[act.agent]] = [name for name, code in written.items() if code in text]
        turns[act.agent] += 1
    assert shown == seen
    assert not list(run.journal.calls())


def test_a_coder_without_the_function_is_marked() -> None:
    run = check_workflow(TwoCoders(turns=1), TASK, ScriptedPolicy({"helper": "I cannot", "main": MAIN}))
    assert list(run.invalid) == [("helper", "0")]


def test_one_coder_writes_both_and_sees_its_code_once() -> None:
    both = f"{HELPER}\n{MAIN}"
    run = check_workflow(TwoCoders(), TASK, ScriptedPolicy({"coder": both}))
    assert JointCode().score(TASK, run.answer) == pytest.approx(4.0)
    assert run.turns[1][0].observation[-1]["content"].count("def aux") == 1
    assert "`aux`" in sees(TASK, "coder", {}, "")


def test_a_test_that_takes_too_long_three_times_is_the_last_that_runs() -> None:
    program = "import time\ndef f(x):\n    while x > 1: pass\n    return x"
    tests = ("assert f(1) == K", "assert candidate(1) == 2, 'no'", *(f"f({number})" for number in range(2, 6)))
    outcomes = run_assertions(program, "f", "K = 1", tests, Limits(1.0))
    assert [outcome.verdict for outcome in outcomes] == ["passed", "wrong", *["timeout"] * 4]
    assert (outcomes[1].error, outcomes[-1].error) == ("AssertionError: no", "not run: 3 tests took too long")
    assert share(outcomes) == 1 / 6
