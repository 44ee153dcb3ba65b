"""The teams of three agents in recipes/teams: replayable, and rewarded for doing their part."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from marl_verl_code.small_programs import fenced
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_testing.scripted import ScriptedContext
from omegaconf import OmegaConf

from marl_verl import Task, plugins
from marl_verl.algo.sampling import Independent
from marl_verl.plugins import one_file

FOLDER = Path(__file__).parents[1] / "recipes" / "teams"
TEST = {"input": "3\n", "output": "10\n"}
NOTES = [{"title": "ada", "text": "add 7"}, {"title": "ben", "text": "add 1"}]
TEAMS: dict[str, tuple[Task, dict[str, Any], dict[str, list[float]], str]] = {
    # file -> a task, replies that solve it, the role rewards of agents, the last observation
    "design_code_test": (
        Task("t", "plus 7", {"public": [], "private": [TEST], "solution": "print(int(input()) + 7)"}),
        {
            "designer": "+ 7",
            "coder": [fenced("python", f"print(int(input()) {sign} 7)") for sign in "-+"],
            "tester": fenced("json", '[{"input": "0", "output": "7"}]'),
        },
        {"coder": [0.0, 2.0], "tester": [1.0]},
        "+ 7 failed 0",
    ),
    "plan_execute_verify": (
        Task("t", "", {"size": 3, "walls": ["a2"], "start": "a1", "goal": "b2", "landmark": "c3"}),
        {"planner": "down right", "executor": ["right", "down", "right"], "verifier": ["no", "yes", "yes"]},
        {"verifier": [1.0, 1.0, 1.0]},
        "at b1 goal b2 blocked left move right",
    ),
    "literature_experiment_analysis": (
        Task("t", "ada", {"paragraphs": NOTES, "readings": {"ada": "8", "ben": "2"}, "answers": ["5"]}),
        {"reader": "<search>ada</search>", "experimenter": "<measure>ben</measure>", "analyst": "<answer>5</answer>"},
        {"reader": [1.0], "experimenter": [0.0]},
        "ada add 7 reading 2",
    ),
    "support_desk": (
        Task("t", "3", {"order": "3", "orders": {"3": "lost", "4": "late"}}),
        {"customer": ["help", "help 3"], "support": ["ask", "status 3", "refund"], "tool": "<call>3</call>"},
        {},
        "help 3 lost",
    ),
}


@pytest.mark.parametrize("name", TEAMS)
def test_a_team_is_replayable_and_rewarded_for_its_part(name: str) -> None:
    task, replies, roles, last_seen = TEAMS[name]
    plugins.use_files(one_file.read_files([FOLDER / f"{name}.py"]))
    marl: Any = OmegaConf.load(FOLDER / f"{name}.yaml").marl
    parts, policy = plugins.load(), ScriptedPolicy(replies)
    workflow, tasks = parts.get("workflows", marl.workflow.name)(), parts.get("tasks", marl.task.name)()
    assert check_workflow(workflow, task, policy, seconds=300).turns[-1][0].observation[-1]["content"] == last_seen
    rewards = {agent: parts.get("rewards", marl.agents[agent].reward) for agent in roles}
    context = ScriptedContext(workflow, task, policy, tasks=tasks, rewards=rewards)
    (episode,) = asyncio.run(Independent(1).sample(context)).episodes
    assert episode.score == 1.0
    assert roles == {agent: [t.rewards["role"] for t in episode.turns if t.agent == agent] for agent in roles}
