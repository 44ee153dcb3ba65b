"""The workflows: replays, the checks of `marl_verl_testing`, and the observations of their agents."""

import asyncio
from dataclasses import replace

from marl_verl_games import log
from marl_verl_games.game_workflows import CALLER, ToolCallerPlanner
from marl_verl_games.plan_path import PathGame
from marl_verl_games.tiny_plan_path import EXECUTOR, PLANNER, PlannerExecutor, TinyPlanPath
from marl_verl_sandbox import run_python
from marl_verl_testing import ScriptedPolicy, check_workflow, shown

from marl_verl import Task

TASK = Task(
    "corridor", "", {"size": 3, "walls": ["b2", "c2"], "start": "c1", "goal": "c3", "landmark": "a1"}
)  # U U R R D D
BOARD = PathGame.of(TASK)


def test_a_team_that_goes_there_and_what_each_of_them_sees() -> None:
    there = {PLANNER: ["up up", "up right", "right"], EXECUTOR: ["up", "up", "right", "right", "down", "down"]}
    run = check_workflow(PlannerExecutor(turns=7), TASK, ScriptedPolicy(there))
    lines = log.read(run.answer)
    assert [str(line) for line in lines[:2]] == ["planner plans U U", "executor moves U"]
    assert (len(lines), TinyPlanPath().score(TASK, run.answer)) == (12, 1.0)
    seen = [shown(act) for act, _ in run.turns]
    assert (seen[2], seen[3]) == ("at b1 goal c3 landmark a1", "blocked left right plan up right")
    assert all("blocked" not in each for each in seen[::2])
    assert all("goal" not in each for each in seen[1::2])
    assert len(run.proposals) == 12


PROGRAM = "Here it is:\n```python\nmoves = ['U', 'U', 'R', 'R', 'D', 'D']\nprint(moves)\n```"


def test_the_planner_sees_what_the_tool_callers_program_printed() -> None:
    policy = ScriptedPolicy({CALLER: PROGRAM, "planner": 'I would go ["U"], but first ["U", "U"]'})
    run = check_workflow(ToolCallerPlanner(turns=2), TASK, policy)
    assert [str(line) for line in log.read(run.answer)[:2]] == ["tool-caller plans U U R R D D", "planner moves U U"]
    seen = [shown(act) for act, _ in run.turns]
    assert "['U', 'U', 'R', 'R', 'D', 'D']" in seen[1]
    assert BOARD.board() in seen[0]
    assert replace(BOARD, cell="a1").board() in seen[2]
    assert "Turn 2 of 2." in seen[3]
    assert [call.agent for call in run.journal.calls()] == [CALLER] * 2  # once a turn, also where it is run again


def test_a_list_of_a_program_that_fails_is_no_plan() -> None:
    policy = ScriptedPolicy({CALLER: PROGRAM.replace("\n```", "\nint('x')\n```"), "planner": '["U"]'})
    run = check_workflow(ToolCallerPlanner(turns=1), TASK, policy)
    assert run.answer == "tool-caller plans ?\nplanner moves U"
    assert [*run.invalid.values()] == ["no program that prints moves"]
    assert "'D', 'D']\nValueError: invalid literal" in shown(run.turns[1][0])


def test_a_program_runs_by_itself_and_ends() -> None:
    for program, seconds, output in (
        ("print('half')\nraise ValueError('bad')", 20, "half\nValueError: bad"),
        ("import os; print(*sorted(os.environ), os.listdir())", 20, "OMP_NUM_THREADS OPENBLAS_NUM_THREADS TMPDIR []"),
        ("import time\nprint('on', flush=True)\ntime.sleep(60)", 1, "TimeoutError: the program took longer than 1 s"),
    ):
        assert asyncio.run(run_python(program, seconds)) == output
