"""Every part without a model, the names that the plugin registers, and the recipe."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marl_verl import Task
from marl_verl_testing import (
    ScriptedPolicy,
    check_algorithm,
    check_credit,
    check_sampler,
    check_task,
    check_workflow,
    shown,
)

from my_method.method import ALGORITHM, Median, Saving, StepForward
from my_method.team import CallOut, Numbers, digits_right

TASK = Task("number-427", "4 2 7", {"digits": list("427")})
RECIPE = Path(__file__).parents[1] / "recipes" / "train.yaml"


def test_the_kit_accepts_the_tasks_and_good_demonstrations_are_right() -> None:
    check_task(Numbers(), lambda task: [task.prompt, "4", ""])
    for agent in ("caller", "writer"):
        for seen, answer in Numbers().demonstrations(agent, 20, 0, good=1.0):
            assert seen.split()[1:] == answer.split()
            assert {*seen.split(), *answer.split()} <= set(Numbers().vocabulary())


def test_the_workflow_can_be_replayed() -> None:
    policy = ScriptedPolicy({"caller": "4 2 7", "writer": lambda act: shown(act).removeprefix("heard ")})
    run = check_workflow(CallOut(), TASK, policy)
    assert run.answer == "4 2 7"
    assert Numbers().score(TASK, run.answer) == 1.0


def test_rounds_repeat_until_both_agree() -> None:
    policy = ScriptedPolicy({"caller": ["4 2", "4 2 7"], "writer": ["4", "4 2 7"]})
    run = check_workflow(CallOut(rounds=3), TASK, policy)
    assert len(run.journal) == 4  # two acts in each of two rounds
    assert Numbers().score(TASK, run.answer) == 1.0
    assert check_workflow(CallOut(rounds=1), TASK, policy).answer == "4"


def test_a_turn_earns_the_share_of_digits_that_it_has_right() -> None:
    policy = ScriptedPolicy({"caller": ["7 2 4", "4 2"], "writer": ["", "4 2 7 7"]})
    rewards = dict.fromkeys(policy.agents, digits_right)
    sample = check_sampler(Saving(episodes=1), CallOut(), TASK, policy, rewards=rewards)
    assert [turn.rewards["role"] for turn in sample.turns] == [1 / 3, 0.0, 2 / 3, 3 / 4]


def row(uid: str, session: int, index: int, team: float, credit: float) -> dict[str, Any]:
    """One row: acts of the caller and the writer alternate."""
    rewards = {"team": team, "role": team / 2, "credit": credit}
    act = {"turn": index // 2, "agent": ("caller", "writer")[index % 2], "slot": str(index // 2)}
    return {"uid": uid, "session": session, "index": index, **act, "rewards": rewards, "length": 3}


# episodes of one or two rounds
ROWS = [
    row(uid, session, index, float(session % 2), float((session + index) % 3 - 1))
    for uid, episodes in (("p", 5), ("q", 2))
    for session in range(episodes)
    for index in range(4 if session % 2 else 2)
]


@pytest.mark.parametrize(("first", "episodes"), [(0, 1), (3, 4), (9, 6)])
def test_a_solved_task_gets_no_more_episodes(first: int, episodes: int) -> None:
    policy = ScriptedPolicy(
        {
            "caller": lambda act, session, candidate: "4 2 7" if session >= first else f"4 {session} {act.turn}",
            "writer": lambda act: shown(act).removeprefix("heard "),
        }
    )
    sample = check_sampler(Saving(episodes=6), CallOut(), TASK, policy, tasks=Numbers())
    assert [episode.session for episode in sample.episodes] == list(range(episodes))


def test_a_turn_is_credited_with_what_it_did_to_the_answer() -> None:
    policy = ScriptedPolicy({"caller": ["4 2 7", "4 2"], "writer": ["7", "4 2 7"]})
    episode, *_ = check_credit(StepForward(), CallOut(), TASK, policy, Numbers(), episodes=1)
    assert [turn.rewards["credit"] for turn in episode.turns] == [1.0, -1.0, 0.0, 1.0]
    assert sum(turn.rewards["credit"] for turn in episode.turns) == episode.score


def test_the_median_of_each_group() -> None:
    value, group = np.array([1.0, 5.0, 0.0, 2.0, 9.0]), np.array([0, 1, 0, 0, 1])
    assert Median().compute(value, group).tolist() == [1.0, 7.0, 1.0, 1.0, 7.0]


def test_the_algorithm_passes_the_checks_of_every_algorithm() -> None:
    result = check_algorithm(ALGORITHM, ROWS)
    assert result.reward.tolist() == [r["rewards"]["team"] * 1.25 + r["rewards"]["credit"] / 2 for r in ROWS]
    assert result.advantage.any()


@pytest.mark.slow
def test_the_recipe_composes() -> None:
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(RECIPE), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sampler: my-method-saving" in done.stdout
