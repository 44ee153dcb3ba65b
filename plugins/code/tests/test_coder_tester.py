"""Coder and unit tester: the turns, and both role rewards by hand; patterns of cooperation; the expert's feedback."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_code import coder_tester
from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.coder_tester import CoderTester, coder_reward, written
from marl_verl_code.cooperation import patterns
from marl_verl_code.small_programs import SIGNS, SmallPrograms, TinyCoderTester, fenced
from marl_verl_code.small_programs import program as small_program
from marl_verl_sandbox import program_in
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow, shown

from marl_verl import Task
from marl_verl.algo.sampling import Independent

TASK = Task(
    "double",
    "Read a number and print twice that number.",
    {
        "public": [{"input": "2\n", "output": "4\n"}],
        "private": [{"input": "-3\n", "output": "-6\n"}, {"input": "0\n", "output": "0\n"}],
        "solution": "print(2 * int(input()))",
    },
)


def program(code: str) -> str:
    return f"So:\n```python\n{code}\n```"


def listed(*pairs: tuple[str, str]) -> str:
    return f"```json\n{json.dumps([{'input': one, 'output': two} for one, two in pairs])}\n```"


RIGHT, SQUARE = program("print(2 * int(input()))"), program("print(int(input()) ** 2)")
GOOD, HALF = listed(("5", "10"), ("0", "0")), listed(("5", "10"), ("5", "25"))


def scripted(coder: Any, tester: Any, task: Task = TASK, turns: int = 1) -> ScriptedContext:
    rewards: Any = {"coder": coder_reward, "tester": coder_tester.tester_reward}
    policy = ScriptedPolicy({"coder": coder, "tester": tester})
    return ScriptedContext(CoderTester(turns=turns), task, policy, tasks=CodeWithTests(seconds=20), rewards=rewards)


def rewarded(coder: Any, tester: Any, task: Task = TASK, turns: int = 1) -> dict[str, list[float]]:
    """The role rewards of each agent, by turn."""
    (episode,) = asyncio.run(Independent(episodes=1).sample(scripted(coder, tester, task, turns))).episodes
    agents = ("coder", "tester")
    return {agent: [turn.rewards["role"] for turn in episode.turns if turn.agent == agent] for agent in agents}


def test_a_program_that_passes_the_testers_tests_ends_it() -> None:
    run = check_workflow(CoderTester(), TASK, ScriptedPolicy({"coder": [SQUARE, RIGHT], "tester": GOOD}))
    assert (len(run.turns), run.answer) == (4, "print(2 * int(input()))")
    seen = run.turns[2][0].observation[0]["content"]
    assert "print(int(input()) ** 2)" in seen
    assert '"printed": "25\\n"' in seen
    assert "-6" not in seen


CALLS = Task("calls", "p", {"private": [{"entry": "Solution.add", "args": [1, 2], "expected": 3}]})
METHOD = program("class Solution:\n    def add(self, a, b): return a + b")


def test_calls_are_run_as_calls_and_no_reference_scores_the_tester_by_the_coder() -> None:
    tester = '```json\n[{"args": [2, 2], "expected": 4}, {"args": 3}, {"input": "1", "output": "1"}]\n```'
    run = check_workflow(CoderTester(), CALLS, ScriptedPolicy({"coder": METHOD, "tester": tester}))
    assert (len(run.turns), run.invalid) == (2, {})  # it passes the tester's one test
    assert "class `Solution` with its method `add`" in run.turns[0][0].observation[0]["content"]
    assert "calls of Solution.add" in run.turns[1][0].observation[0]["content"]
    for coder, expected in ((METHOD, 1.0), (program("print(3)"), 0.0)):
        assert rewarded(coder, tester, CALLS) == {"coder": [2 * expected], "tester": [expected]}
    # without tests in a turn the last ones before it count, and the program of the same turn
    rates = rewarded([SQUARE, SQUARE, SQUARE, RIGHT], ["none", GOOD, HALF, "none"], turns=4)["tester"]
    assert rates == pytest.approx([0 + 2 / 3, 1 + 2 / 3, 0.5 + 2 / 3, 0.5 + 1])


def test_a_tree_samples_no_token_that_is_not_a_row() -> None:
    """Every act proposes an answer, so that no continuation has to be sampled to score it."""
    sample = asyncio.run(GreedyTree(candidates=2).sample(scripted([SQUARE, RIGHT], HALF, turns=2)))
    assert sample.extra_tokens == {}
    assert {turn.agent: turn.rewards["role"] for turn in sample.turns[-4:]} == {"coder": 2.0, "tester": 1.5}
    assert len(sample.turns) == 8


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return aux(x)", {"calls"}),
        ("return aux(x) + 1", {"calls", "decorator"}),
        ("try:\n    return aux(x)\nexcept ValueError:\n    return 0", {"calls", "fallback"}),
        ("total = 0\nfor each in x:\n    total += aux(each)\nreturn total", {"calls", "coordinator"}),
        ("if aux(x):\n    return 1\nreturn 2", {"calls", "strategy-filter"}),
    ],
)
def test_patterns_of_cooperation(body: str, found: set[str]) -> None:
    assert patterns("\n    ".join(["def solve(x):", *body.splitlines()]), "solve") == found


@pytest.mark.slow
def test_a_run_reports_the_pass_rate_and_a_failed_measure_does_not_end_it() -> None:
    """The answer is the second program, which passes 2 of 3 tests."""
    from marl_verl.backend.protocol import Report
    from marl_verl.backend.rollout.worker import RolloutWorker
    from marl_verl.episode.errors import Limits

    context = scripted([SQUARE, program("print(2 * abs(int(input())))")], GOOD, turns=2)
    sample = asyncio.run(Independent(episodes=1).sample(context))
    made: Any = object.__new__(RolloutWorker)
    made.parts = SimpleNamespace(task_context=SimpleNamespace(tasks=CodeWithTests(seconds=20), limits=Limits()))
    made.observers, made._logged = SimpleNamespace(marl_episode_finished=lambda **_: None), set()
    for seconds, measures in ((20, [{"pass_rate": pytest.approx(2 / 3)}]), (None, [])):
        made.parts.task_context.tasks.seconds = seconds
        report = Report("u", "t")
        asyncio.run(made._fill(report, sample))
        assert (report.measures, len(report.turns)) == (measures, 4)


SMALL = SmallPrograms(seconds=20)


def test_demonstrations_are_of_training_tasks_and_good_ones_pass() -> None:
    held = {task.prompt for task in SMALL.generate("test", 20, 0)}
    for good in (1.0, 0.0):
        for seen, said in SMALL.demonstrations("coder", 40, 0, good):
            word, number = seen.split()[:2]
            assert f"{word} {number}" not in held
            assert (program_in(said) == small_program(word, number)) == bool(good)
        for seen, said in SMALL.demonstrations("tester", 40, 0, good):
            word, number = seen.split()[:2]
            ((text, output),) = [(test["input"], test["output"]) for test in written(said)]
            assert (eval(f"{text} {SIGNS[word]} {number}") == int(output)) == bool(good)


def test_the_tiny_workflow() -> None:
    (task,) = SMALL.generate("train", 1, 3)
    tests = fenced("json", '[{"input": "0", "output": "no number"}]')
    policy = ScriptedPolicy({"coder": fenced("python", task.data["solution"]), "tester": tests})
    run = check_workflow(TinyCoderTester(turns=2), task, policy)
    assert [shown(act) for act, _ in run.turns] == [task.prompt] * 2 + [f"{task.prompt} failed 0"] * 2
    assert asyncio.run(SMALL.score(task, run.answer)) == 1.0
