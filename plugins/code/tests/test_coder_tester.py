"""Coder and unit tester: the turns, and both role rewards by hand; patterns of cooperation; the expert's feedback."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_code import coder_tester
from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.coder_tester import CoderTester, coder_reward, written
from marl_verl_code.cooperation import Cooperation, patterns
from marl_verl_code.joint_code import TwoCoders, edits
from marl_verl_testing import ScriptedContext, ScriptedPolicy, check_workflow

from marl_verl import MarlError, Task
from marl_verl.algo.sampling import Independent, Sample
from marl_verl.episode import Episode, Journal, Turn

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


def tests(*pairs: tuple[str, str]) -> str:
    return f"```json\n{json.dumps([{'input': one, 'output': two} for one, two in pairs])}\n```"


RIGHT, SQUARE = program("print(2 * int(input()))"), program("print(int(input()) ** 2)")
GOOD, HALF = tests(("5", "10"), ("0", "0")), tests(("5", "10"), ("5", "25"))


def rewarded(coder: Any, tester: Any, turns: int = 1) -> list[dict[str, float]]:
    rewards: Any = {"coder": coder_reward, "tester": coder_tester.tester_reward}
    context = ScriptedContext(
        CoderTester(turns=turns),
        TASK,
        ScriptedPolicy({"coder": coder, "tester": tester}),
        tasks=CodeWithTests(seconds=20),
        rewards=rewards,
    )
    sample = asyncio.run(Independent(episodes=1).sample(context))
    assert not sample.failures, sample.failures
    return [{turn.agent: turn.rewards["role"]} for turn in sample.turns]


@pytest.mark.parametrize(
    ("coder", "tester", "expected"),
    [
        (RIGHT, GOOD, (2.0, 2.0)),
        (RIGHT, HALF, (2.0, 1.5)),
        (SQUARE, GOOD, (4 / 3, 1 + 2 / 3)),  # right for 2 and for 0
        (program("1 / 0"), GOOD, (0.0, 1.0)),
        ("no code", GOOD, (0.0, 1.0)),
        (RIGHT, "no tests", (2.0, 1.0)),
        ("no code", "no tests", (0.0, 0.0)),
        ("```text\nprint(2 * int(input()))\n```", GOOD, (0.0, 1.0)),
        (f"{SQUARE}\n{RIGHT}\n```\n4\n```", GOOD, (2.0, 2.0)),  # the last python block
        (program("print(2 * int(input()), '\\n'); raise SystemExit(3)"), GOOD, (2.0, 2.0)),
        (program("print(2 * int(input()))\nraise ValueError"), GOOD, (0.0, 1.0)),
    ],
)
def test_both_role_rewards(coder: str, tester: str, expected: tuple[float, float]) -> None:
    found = rewarded(coder, tester)
    assert {agent: value for each in found for agent, value in each.items()} == {
        "coder": pytest.approx(expected[0]),
        "tester": pytest.approx(expected[1]),
    }


def test_a_program_that_passes_the_testers_tests_ends_it() -> None:
    run = check_workflow(CoderTester(), TASK, ScriptedPolicy({"coder": [SQUARE, RIGHT], "tester": GOOD}))
    assert (len(run.turns), run.answer) == (4, "print(2 * int(input()))")
    seen = run.turns[2][0].observation[0]["content"]
    assert "print(int(input()) ** 2)" in seen
    assert '"printed": "25\\n"' in seen
    assert "-6" not in seen


def test_an_act_without_tests_keeps_the_first_term_of_the_act_before() -> None:
    scores = rewarded([SQUARE, SQUARE, RIGHT], [HALF, "none", GOOD], turns=3)
    testers = [score["tester"] for score in scores if "tester" in score]
    assert testers == pytest.approx([0.5 + 2 / 3, 0.5 + 2 / 3, 2.0])


def test_the_first_tests_count_and_their_number_is_an_option() -> None:
    cases = [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in (2, 0, 3, 4, 5)]
    task = Task("many", "p", {"public": cases[:1], "private": cases[1:], "solution": "print(2 * int(input()))"})
    for count, share in ((None, 2 / 4), (5, 2 / 5), (1, 1)):
        rows = CodeWithTests(**({} if count is None else {"reward_tests": count})).marked([task])
        assert ("reward_tests" in rows[0].data) == (count is not None)
        turn = check_workflow(CoderTester(turns=1), rows[0], ScriptedPolicy({"coder": SQUARE, "tester": GOOD})).turns[0]
        act = Turn(turn[0], turn[1], "u", 0, "coder")
        episode = Episode("u", 0, rows[0], [act], "", False, Journal(()))
        assert asyncio.run(coder_reward(rows[0], act, episode)) == pytest.approx(2 * share)


CALLS = Task("calls", "p", {"private": [{"entry": "Solution.add", "args": [1, 2], "expected": 3}]})
METHOD = program("class Solution:\n    def add(self, a, b): return a + b")


def test_calls_are_run_as_calls_and_no_reference_scores_the_tester_by_the_coder() -> None:
    tester = '```json\n[{"args": [2, 2], "expected": 4}, {"args": 3}, {"input": "1", "output": "1"}]\n```'
    run = check_workflow(CoderTester(), CALLS, ScriptedPolicy({"coder": METHOD, "tester": tester}))
    assert (len(run.turns), run.invalid) == (2, {})  # it passes the tester's one test
    assert "class `Solution` with its method `add`" in run.turns[0][0].observation[0]["content"]
    assert "calls of Solution.add" in run.turns[1][0].observation[0]["content"]
    for coder, expected in ((METHOD, 1.0), (program("print(3)"), 0.0)):
        context = ScriptedContext(
            *(CoderTester(turns=1), CALLS, ScriptedPolicy({"coder": coder, "tester": tester})),
            tasks=CodeWithTests(seconds=20),
            rewards={"coder": coder_reward, "tester": coder_tester.tester_reward},
        )
        sample = asyncio.run(Independent(episodes=1).sample(context))
        scores = {turn.agent: turn.rewards["role"] for turn in sample.turns}
        assert scores == {"coder": 2 * expected, "tester": expected}


def test_a_tree_samples_no_token_that_is_not_a_row() -> None:
    """Every act proposes an answer, so that no continuation has to be sampled to score it."""
    context = ScriptedContext(
        *(CoderTester(turns=2), TASK, ScriptedPolicy({"coder": [SQUARE, RIGHT], "tester": HALF})),
        tasks=CodeWithTests(seconds=20),
        rewards={"coder": coder_reward, "tester": coder_tester.tester_reward},
    )
    sample = asyncio.run(GreedyTree(candidates=2).sample(context))
    assert sample.extra_tokens == {}
    assert {turn.agent: turn.rewards["role"] for turn in sample.turns[-4:]} == {"coder": 2.0, "tester": 1.5}
    assert len(sample.turns) == 8


def test_tests_of_another_form_do_not_count() -> None:
    assert written(GOOD) == [{"input": "5", "output": "10"}, {"input": "0", "output": "0"}]
    assert written('```json\n[{"input": 1, "output": "2"}, 3, {"input": "a", "output": "b", "more": 1}]\n```') == [
        {"input": "a", "output": "b"}
    ]
    assert len(written(tests(*[("1", "2")] * 20))) == 8
    assert written("```json\n" + "[" * 100_000 + "\n```") == []


# cooperation


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("return x", set()),
        ("return aux(x)", {"calls"}),
        ("y = aux(x)\nreturn y", {"calls"}),
        ("return aux(x) + 1", {"calls", "decorator"}),
        ("y = aux(x)\nreturn sorted(y)", {"calls", "decorator"}),
        ("try:\n    return aux(x)\nexcept ValueError:\n    return 0", {"calls", "fallback"}),
        ("try:\n    return 1 / x\nexcept ValueError:\n    return aux(x)", {"calls", "fallback"}),
        ("total = 0\nfor each in x:\n    total += aux(each)\nreturn total", {"calls", "coordinator"}),
        ("return [aux(each) for each in x]", {"calls", "coordinator", "decorator"}),
        ("if aux(x):\n    return 1\nreturn 2", {"calls", "strategy-filter"}),
        ("kind = aux(x)\nif kind == 1:\n    return 1\nreturn 2", {"calls", "strategy-filter"}),
        ("if x:\n    return aux(x)\nreturn 2", {"calls"}),
    ],
)
def test_patterns_of_cooperation(body: str, found: set[str]) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    assert patterns(f"def solve(x):\n{lines}", "solve") == found


def test_the_metric_is_a_share_of_the_answers() -> None:
    task = Task("t", "p", {"entry": "solve"})
    answers = [{"helper": "", "main": f"def solve(x): return {value}"} for value in ("aux(x)", "aux(x) + 1", "x", "x")]
    sample = Sample([Episode("u", n, task, [], answer, True, Journal(())) for n, answer in enumerate(answers)])
    found = Cooperation().of_sample(sample)
    assert (found["cooperation/calls"], found["cooperation/decorator"], found["cooperation/fallback"]) == (0.5, 0.25, 0)
    assert Cooperation().of_sample(Sample([Episode("u", 0, task, [], None, False, Journal(()))])) == {}


EDITS = """Add one.
```python
import math
@memoised
def aux(x):
    return x + 1
```
and
```
def solve(x):
    return aux(x) + 0
```"""


def test_an_expert_reads_both_codes_and_edits_those_of_each_agent() -> None:
    task = Task("t", "def solve(x): ...", {"entry": "solve", "tests": ["assert solve(1) == 2"]})
    script = {"helper": "def aux(x): return x", "main": "def solve(x): return aux(x)", "expert": EDITS}
    run = check_workflow(TwoCoders(feedback="expert"), task, ScriptedPolicy(script))
    assert [act.agent for act, _ in run.turns] == ["helper", "main", "expert", "helper", "main"]
    expert = run.turns[2][0].observation[0]["content"]
    assert "def solve(x): return aux(x)" in expert
    assert "0 of 1 tests pass." in expert
    for (act, _), mine, other in zip(run.turns[3:], ("x + 1", "aux(x) + 0"), ("aux(x) + 0", "x + 1"), strict=True):
        seen = act.observation[0]["content"]
        assert f"    return {mine}\n```" in seen
        assert f"return {other}" not in seen
    assert edits("```\ndef solve(x): return 2\n```", ("aux",)) == "An expert suggests:\nno change of `aux`."
    both = edits(EDITS, ("aux", "solve"))  # of a team of one
    assert "x + 1" in both
    assert "aux(x) + 0" in both
    for feedback, agents in (("expert", ("helper", "main")), ("levels", ("helper", "main", "expert"))):
        policy = ScriptedPolicy({agent: script[agent] for agent in agents})
        with pytest.raises(MarlError, match="two-coders needs the agent 'expert' with feedback expert, and only then"):
            check_workflow(TwoCoders(feedback=feedback), task, policy)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_run_reports_the_pass_rate_and_what_the_agents_read() -> None:
    """The second program, which passes 2 of 3 tests; a failed measure ends no run."""
    from marl_verl.backend.report import Report
    from marl_verl.backend.rollout.worker import RolloutWorker

    tasks = CodeWithTests(seconds=20)
    policy = ScriptedPolicy({"coder": [SQUARE, program("print(2 * abs(int(input())))")], "tester": GOOD})
    context = ScriptedContext(CoderTester(turns=2), TASK, policy, tasks=tasks)
    sample = asyncio.run(Independent(episodes=1).sample(context))
    made: Any = object.__new__(RolloutWorker)
    made.parts = SimpleNamespace(task_context=SimpleNamespace(tasks=tasks))
    made.observers, made._logged = SimpleNamespace(marl_episode_finished=lambda **_: None), set()
    report = Report("u", "t")
    asyncio.run(made._fill(report, sample))
    assert report.measures == [{"pass_rate": pytest.approx(2 / 3)}]
    assert [agent for agent, _ in report.read] == ["coder", "tester"] * 2
    read = [tokens for _, tokens in report.read]
    line = "print(int(input()) ** 2)"  # all that a tester sees of the coder's text
    share = len(line.replace(" ", "")) / len("".join(SQUARE.split()))
    assert read == [0, 0, 0, pytest.approx(len(SQUARE) * share)]
    tasks.seconds = None  # type: ignore[assignment]
    again = Report("u", "t")
    asyncio.run(made._fill(again, sample))
    assert (again.measures, len(again.read)) == ([], 4)
