"""The task set, the workflow on it, the role reward, and the recipe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from marl_verl import MarlError, Task
from marl_verl.testing import ScriptedPolicy, check_sampler, check_workflow, shown

from my_method.method import Saving
from my_method.team import CallOut, Numbers, digits_right

TASK = Task("number-427", "4 2 7", {"digits": list("427")})
RECIPE = Path(__file__).parents[1] / "recipes" / "train.yaml"


def test_held_out_numbers_are_never_trained_on() -> None:
    train, test = (Numbers().generate(split, count, 0) for split, count in (("train", 900), ("test", 100)))
    assert not {task.id for task in train} & {task.id for task in test}
    assert Numbers().generate("train", 20, 3) == Numbers().generate("train", 20, 3)
    with pytest.raises(MarlError, match="100 test numbers, not 101"):
        Numbers().generate("test", 101, 0)


def test_good_demonstrations_are_right() -> None:
    for agent in ("caller", "writer"):
        for seen, said in Numbers().demonstrations(agent, 20, 0, good=1.0):
            assert seen.split()[1:] == said.split()
            assert {*seen.split(), *said.split()} <= set(Numbers().vocabulary())


def test_the_workflow_can_be_replayed() -> None:
    policy = ScriptedPolicy({"caller": "4 2 7", "writer": lambda act: shown(act).removeprefix("heard ")})
    run = check_workflow(CallOut(), TASK, policy)
    assert run.answer == "4 2 7"
    assert Numbers().score(TASK, run.answer) == 1.0


def test_they_go_on_until_they_agree() -> None:
    policy = ScriptedPolicy({"caller": ["4 2", "4 2 7"], "writer": ["4", "4 2 7"]})
    run = check_workflow(CallOut(rounds=3), TASK, policy)
    assert len(run.journal) == 4  # two acts in each of two rounds
    assert Numbers().score(TASK, run.answer) == 1.0
    assert check_workflow(CallOut(rounds=1), TASK, policy).answer == "4"


def test_a_turn_earns_the_share_of_digits_that_it_has_right() -> None:
    policy = ScriptedPolicy({"caller": ["7 2 4", "4 2"], "writer": ["", "4 2 7 7"]})
    rewards = dict.fromkeys(policy.agents, digits_right)
    sample = check_sampler(Saving(), CallOut(), TASK, policy, sessions=1, rewards=rewards)
    assert [turn.rewards["role"] for turn in sample.turns] == [1 / 3, 0.0, 2 / 3, 3 / 4]


@pytest.mark.slow
def test_the_recipe_composes() -> None:
    command = [sys.executable, "-m", "marl_verl.cli.main", "train", str(RECIPE), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sampler=my-method-saving" in done.stdout
