"""The authors' role rewards: golden cases of games, of coder and tester, and of tests that are calls."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_code import coder_tester
from marl_verl_code.code_tests import CodeWithTests
from marl_verl_code.coder_tester import CODER, TESTER, CoderTester, written
from marl_verl_code.sets import apps, livecodebench
from marl_verl_datasets import Fields
from marl_verl_games.game_workflows import CALLER, ToolCallerPlanner, game, program
from marl_verl_games.plan_path import PlanPath
from marl_verl_games.sokoban import SokobanTasks
from marl_verl_testing import ScriptedContext, ScriptedPolicy
from marl_verl_tiny.grid import cells

from marl_verl import Task, TaskSet, Workflow
from marl_verl.algo.sampling import Independent

REWARDS = Path(__file__).resolve().parents[4] / "shared" / "golden" / "rewards"
CODE = {CODER: coder_tester.coder_reward, TESTER: coder_tester.tester_reward}


def cases(name: str) -> list[Any]:
    found = json.loads((REWARDS / f"at_grpo_{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


def rewarded(workflow: Workflow, task: Task, texts: Any, rewards: Any, tasks: TaskSet) -> list[tuple[str, float]]:
    """(agent, role reward) of each turn of one episode."""
    context = ScriptedContext(workflow, task, ScriptedPolicy(texts), tasks=tasks, rewards=rewards)
    sample = asyncio.run(Independent(episodes=1).sample(context))
    assert not sample.failures, sample.failures
    return [(turn.agent, turn.rewards["role"]) for turn in sample.turns]


def board(inputs: dict[str, Any]) -> Task:
    if inputs["game"] == "sokoban":
        marks = str.maketrans(" $.", ".BO")
        return Task("q", "", {"game": "sokoban", "rows": [row.translate(marks) for row in inputs["rows"]]})
    marked = dict(zip(cells(len(inputs["rows"])), "".join(inputs["rows"]), strict=True))
    at = {mark: [cell for cell, other in marked.items() if other == mark] for mark in "SG#"}
    return Task("q", "", {"size": len(inputs["rows"]), "walls": at["#"], "start": at["S"][0], "goal": at["G"][0]})


@pytest.mark.parametrize("case", cases("game_rewards"))
def test_games(case: dict[str, Any]) -> None:
    turns, expected = case["inputs"]["turns"], case["expected"]["turns"]
    texts = {
        CALLER: [f"```python\nprint({turn['program_prints']!r}, end='')\n```" for turn in turns],
        "planner": [turn["planner_answers"] for turn in turns],
    }
    tasks: TaskSet = SokobanTasks() if case["inputs"]["game"] == "sokoban" else PlanPath()
    rewards = {CALLER: program, "planner": game}
    scores = rewarded(ToolCallerPlanner(turns=len(turns)), board(case["inputs"]), texts, rewards, tasks)
    assert [value for agent, value in scores if agent == CALLER] == pytest.approx([turn["tool"] for turn in expected])
    planners = [value for agent, value in scores if agent != CALLER]
    assert planners == pytest.approx([turn["planner"] for turn in expected])


@pytest.mark.parametrize("case", cases("code_rewards"))
def test_coder_and_tester(case: dict[str, Any]) -> None:
    inputs, expected = case["inputs"], case["expected"]
    task = Task("q", "", {"private": inputs["tests"], "solution": inputs["solution"]})
    texts = {CODER: inputs["coder"], TESTER: inputs["tester"]}
    tester = case.get("intended_tester", expected["tester"])
    scores = rewarded(CoderTester(turns=2), task, texts, CODE, CodeWithTests())
    assert dict(scores[:2]) == pytest.approx({CODER: expected["coder"], TESTER: tester})
    assert (len(scores) == 2) == (expected["episode_ends"] or "intended_tester" in case)
    assert len(written(inputs["tester"])) == expected["tests_parsed"]
    released = Task("q", "", {"private": inputs["tests"]})  # without a reference solution
    scores = rewarded(CoderTester(turns=1), released, texts, CODE, CodeWithTests())
    assert dict(scores)[TESTER] == pytest.approx(expected["tester_as_released"])


@pytest.mark.parametrize("case", cases("call_tests"))
def test_calls(case: dict[str, Any]) -> None:
    """Ours is the intended value: the function passes, and a program that reads its arguments does not."""
    name, test, code = case["name"], case["inputs"]["test"], case["inputs"]["program"]
    if name.startswith("livecodebench"):
        packed = json.dumps([{**test, "testtype": "functional"}])
        row: dict[str, Any] = {"question_id": "q", "question_content": "?", "public_test_cases": packed}
        row |= {"private_test_cases": packed, "metadata": json.dumps({"func_name": "addLargest"})}
        row["starter_code"] = "class Solution:\n    def addLargest(self, xs, k):"
        task = livecodebench(Fields(row, "row"))
        assert "class Solution:" in task.prompt
    else:
        pairs = {"inputs": [json.loads(test["input"])] * 3, "outputs": [json.loads(test["output"])] * 3}
        task = apps(Fields({"id": "q", "question": "?", "input_output": {**pairs, "fn_name": "scaled"}}, "row"))
    texts = {CODER: f"```python\n{code}```", TESTER: "none"}
    right = 1.0 - case["expected"]["pass_rate"]
    assert rewarded(CoderTester(turns=1), task, texts, CODE, CodeWithTests()) == [(CODER, 2 * right), (TESTER, right)]
