"""The code tasks: every level of the reward on syntax trees, the feedback, and the workflow."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from marl_verl_code import code_tests
from marl_verl_code.code_levels import code_in, function, levels
from marl_verl_code.joint_code import JointCode, judged, run_assertions, share
from marl_verl_sandbox import Limits, Outcome

from marl_verl import Task

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
    monkeypatch.setattr(code_tests, "current", InProcess)
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
        (f"def aux(x):\n    pass\n\n{AUX_ONLY}", AUX_ONLY),
        ("def aux(x):\n    return (x\nThe bracket is open", "def aux(x):\n    return (x"),
    ],
)
def test_of_an_answer_the_function_is_kept(text: str, kept: str) -> None:
    assert function(text, "aux").rstrip() == kept
    assert function(code_in(text), "aux").rstrip() == kept


@pytest.mark.parametrize(("helper", "passed", "reward"), [("", 1.0, 2.1), (HELPER, None, 1.5)])
def test_levels_without_a_helper_a_return_or_tests(helper: str, passed: float | None, reward: float) -> None:
    assert sum(levels(helper, MAIN, "aux", True, passed).values()) == pytest.approx(reward)


def test_the_task_set_runs_the_tests() -> None:
    tasks = JointCode()
    assert tasks.score(TASK, {"helper": HELPER, "main": MAIN}) == pytest.approx(4.0)
    assert tasks.success(TASK, {"helper": HELPER, "main": MAIN})
    half = {"helper": HELPER, "main": "def solve(x):\n    y = aux(x)\n    return 4 if y else 0\n"}
    assert tasks.score(TASK, half) == pytest.approx(3.5)
    assert not tasks.success(TASK, half)
    assert tasks.public_score(TASK, half) == 1.0
    assert tasks.public_score(TASK, {"helper": "", "main": MAIN}) == 0.0


def test_a_test_that_takes_too_long_three_times_is_the_last_that_runs() -> None:
    program = "import time\ndef f(x):\n    while x > 1: pass\n    return x"
    tests = ("assert f(1) == K", "assert candidate(1) == 2, 'no'", *(f"f({number})" for number in range(2, 6)))
    outcomes = run_assertions(program, "f", "K = 1", tests, Limits(1.0))
    assert [outcome.verdict for outcome in outcomes] == ["passed", "wrong", *["timeout"] * 4]
    assert (outcomes[1].error, outcomes[-1].error) == ("AssertionError: no", "not run: 3 tests took too long")
    assert share(outcomes) == 1 / 6
