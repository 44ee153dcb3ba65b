"""The workflows: replays, the checks of `marl_verl_testing`, and the observations of their agents."""

from __future__ import annotations

import asyncio
import json
import zlib
from typing import Any

import pytest
from marl_verl_at_grpo.chat_workflows import CALLER, OneChatWalker, ToolCallerPlanner
from marl_verl_at_grpo.greedy_tree import GreedyTree
from marl_verl_games import log
from marl_verl_games.board import WORDS, Board
from marl_verl_games.plan_path import EXECUTOR, PLANNER, SOLO, PlanPath, TinyPlanPath
from marl_verl_games.plan_path_rewards import at_plan_path
from marl_verl_games.tiny_workflows import OneWalker, PlannerExecutor
from marl_verl_math.python_tool import program_in, run_python
from marl_verl_testing import ScriptedPolicy, check_sampler, check_workflow, shown

from marl_verl import Task, Workflow
from marl_verl.algo.sampling import Independent
from marl_verl.episode import Act
from marl_verl.errors import MarlError
from marl_verl.options import build

TASK = Task(
    "corridor", "", {"size": 3, "walls": ["b2", "c2"], "start": "c1", "goal": "c3", "landmark": "a1"}
)  # U U R R D D
BOARD = Board.of(TASK)
REWARDS = {PLANNER: at_plan_path, EXECUTOR: at_plan_path}


def varied(act: Act, session: int, candidate: Any) -> str:
    """Two words that depend on everything; now and then one that is no move."""
    number = zlib.crc32(f"{act.agent} {act.slot} {session} {candidate} {shown(act)}".encode())
    words = [*WORDS, "at"]
    return f"{words[number % 5]} {words[number // 5 % 4]}"


TEAM = ScriptedPolicy({PLANNER: varied, EXECUTOR: varied})


def test_a_team_that_goes_there_and_what_each_of_them_sees() -> None:
    there = {PLANNER: ["up up", "up right", "right"], EXECUTOR: ["up", "up", "right", "right", "down", "down"]}
    run = check_workflow(PlannerExecutor(turns=7), TASK, ScriptedPolicy(there))
    lines = log.read(run.answer)
    assert [str(line) for line in lines[:2]] == ["planner plans U U", "executor moves U"]
    assert (len(lines), log.walk(BOARD, lines).reached) == (12, True)
    seen = [shown(act) for act, _ in run.turns]
    assert seen[2] == "at b1 goal c3 landmark a1"
    assert seen[3] == "blocked left right plan up right"
    assert all("blocked" not in each for each in seen[::2])
    assert all("goal" not in each for each in seen[1::2])
    assert len(run.proposals) == 12


def test_it_is_over_at_the_goal_and_at_the_last_turn() -> None:
    near = Task("near", "", {**TASK.data, "start": "b3"})
    assert len(check_workflow(PlannerExecutor(), near, ScriptedPolicy({PLANNER: "down", EXECUTOR: "down"})).turns) == 2
    lost = check_workflow(PlannerExecutor(turns=2), TASK, ScriptedPolicy({PLANNER: "left", EXECUTOR: "left"}))
    assert len(lost.turns) == 4
    assert PlanPath().score(TASK, lost.answer) == 0.0


def test_unparsable_plans_are_invalid_and_shown_as_none() -> None:
    run = check_workflow(PlannerExecutor(turns=1), TASK, ScriptedPolicy({PLANNER: "goal c3", EXECUTOR: "up up"}))
    assert run.invalid == {(PLANNER, "0"): "no moves", (EXECUTOR, "0"): "more than 1 moves"}
    assert shown(run.turns[1][0]) == "blocked down left right plan none"
    assert run.answer == "planner plans ?\nexecutor moves U"


def test_the_single_agent_sees_both_and_moves_alone() -> None:
    run = check_workflow(OneWalker(turns=6), TASK, ScriptedPolicy({SOLO: ["up", "up", "right", "right", "down"]}))
    assert shown(run.turns[1][0]) == "at b1 goal c3 landmark a1 blocked left right"
    assert PlanPath().score(TASK, run.answer) == 1.0


@pytest.mark.parametrize("sampler", [GreedyTree(3), GreedyTree(3, "latest"), GreedyTree(3, "rollout"), Independent(3)])
def test_the_kit_finds_nothing_wrong_with_sampling_it(sampler: Any) -> None:
    found = check_sampler(sampler, PlannerExecutor(), TASK, TEAM, tasks=TinyPlanPath(), rewards=REWARDS)
    assert {turn.agent for turn in found.turns} == {PLANNER, EXECUTOR}


def test_options_are_checked() -> None:
    for workflow in (PlannerExecutor, OneWalker, ToolCallerPlanner, OneChatWalker):
        with pytest.raises(MarlError, match=r"turns.* must be .*, got 0"):
            build(workflow, {"turns": 0}, "marl.workflow.options")


PROGRAM = "Here it is:\n```python\nmoves = ['U', 'U', 'R', 'R', 'D', 'D']\nprint(moves)\n```"


def test_the_planner_sees_what_the_tool_callers_program_printed() -> None:
    policy = ScriptedPolicy({CALLER: PROGRAM, "planner": 'I would go ["U"], but first ["U", "U"]'})
    run = check_workflow(ToolCallerPlanner(turns=2), TASK, policy)
    lines = log.read(run.answer)
    assert [str(line) for line in lines[:2]] == ["tool-caller plans U U R R D D", "planner moves U U"]
    seen = [shown(act) for act, _ in run.turns]
    assert "['U', 'U', 'R', 'R', 'D', 'D']" in seen[1]
    assert BOARD.drawn("c1") in seen[0]
    assert BOARD.drawn("a1") in seen[2]
    assert "Turn 2 of 2." in seen[3]
    assert [call.agent for call in run.journal.calls()] == [CALLER] * 2  # once a turn, also where it is run again


@pytest.mark.parametrize("text", ["no program", "```python\nprint('R and U')\n```", "```python\nraise ValueError\n```"])
def test_a_tool_caller_without_moves_is_invalid_and_the_planner_may_still_go(text: str) -> None:
    policy = ScriptedPolicy({CALLER: text, "planner": '["U", "U", "R", "R", "D", "D"]'})
    run = check_workflow(ToolCallerPlanner(), TASK, policy)
    assert run.invalid == {(CALLER, "0"): "no program that prints moves"}
    assert PlanPath().score(TASK, run.answer) == 1.0


def test_the_tool_callers_candidates_differ_by_their_programs_output() -> None:
    def write(act: Act, session: int, candidate: Any) -> str:
        return PROGRAM if str(candidate).endswith("1") else "```python\nprint(['L'])\n```"

    policy = ScriptedPolicy({CALLER: write, "planner": lambda act, session, candidate: f'["U"] {candidate} ["U", "U"]'})
    rewards = {CALLER: at_plan_path, "planner": at_plan_path}
    found = check_sampler(GreedyTree(2), ToolCallerPlanner(turns=1), TASK, policy, tasks=PlanPath(), rewards=rewards)
    callers = [turn.rewards for turn in found.turns if turn.agent == CALLER]
    assert callers == [{"team": 0.0, "role": pytest.approx(-0.1)}, {"team": 1.0, "role": pytest.approx(6 - 0.06 + 1.5)}]


def test_the_single_chat_agent_moves_alone() -> None:
    run = check_workflow(OneChatWalker(), TASK, ScriptedPolicy({"walker": ['["U", "U", "R", "R"]', '["D", "D"]']}))
    assert PlanPath().score(TASK, run.answer) == 1.0
    assert len(run.turns) == 2


def test_a_program_is_the_last_block() -> None:
    assert program_in("```\n1\n```\nor\n```python\nprint(2)\n```") == "print(2)\n"
    assert program_in("none") is None


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("print(6 * 7)", "42"),
        ("print('half')\nraise ValueError('bad')", "half\nValueError: bad"),
        ("def", "SyntaxError: invalid syntax"),
        (
            "import os; print(sorted(os.environ), os.listdir())",
            "['OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'TMPDIR'] []",
        ),
        ("x = bytearray(1 << 31)", "MemoryError"),
    ],
)
def test_a_program_runs_by_itself(program: str, output: str) -> None:
    assert asyncio.run(run_python(program)) == output


def test_a_program_that_does_not_end_is_ended() -> None:
    output = asyncio.run(run_python("import time\nprint('on', flush=True)\ntime.sleep(60)", 1.0))
    assert output == "TimeoutError: the program took longer than 1 s"


def test_long_output_is_cut_at_its_beginning() -> None:
    output = asyncio.run(run_python("print('a' * 5000 + 'end')"))
    assert (len(output), output[-4:]) == (2000, "aend")


def test_a_task_is_json_and_any_workflow_takes_it_back() -> None:
    (task,) = PlanPath(size=4).generate("train", 1, 0)
    again = Task(**json.loads(json.dumps({"id": task.id, "prompt": task.prompt, "data": task.data})))
    workflow: Workflow = OneChatWalker(turns=1)
    assert check_workflow(workflow, again, ScriptedPolicy({"walker": '["U"]'})).finished
