"""Every algorithm, sampler and credit trains, and every family of tasks: a step in this process."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marl_verl import plugins
from tests.local.training import INVENTORY, RECIPES, check, train

pytest.importorskip("verl")
pytestmark, LONG = pytest.mark.slow, pytest.mark.long

PAPERS = ("at_grpo/cpu", "dr_mas/cpu", "magrpo/cpu", "mars2/cpu", "sharp/cpu")
TOGETHER = {"at_grpo/cpu": ("agent", "turn", "slot"), "magrpo/cpu": ("agent", "parent")}
"""Recipe with a tree -> the columns that siblings share."""


@pytest.mark.parametrize("recipe", PAPERS)
def test_a_paper(recipe: str, tmp_path: Path) -> None:
    small = ["data.train_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2"]
    small += ["marl.task.train_size=48"] * (recipe == "at_grpo/cpu")  # whose tasks take longest
    run = train(tmp_path / "run", recipe, "marl.schedule.mode=sync", *small, tiny=40)
    rows = check(run)
    if recipe in TOGETHER:
        siblings = defaultdict(list)
        for row in rows:
            siblings[tuple(row[column] for column in ("uid", *TOGETHER[recipe]))].append(row["obs"])
        assert {len(observations) for observations in siblings.values()} == {8 if recipe == "at_grpo/cpu" else 4}
        assert all(len(set(observations)) == 1 for observations in siblings.values())
    if recipe == "sharp/cpu":
        assert run.lines("train/success")[0]["train/extra_tokens/credit"] > 0
        assert all(("mc" in row["rewards"]) == (row["agent"] != "planner") for row in rows)


FAST = ("gdpo", "remax")
"""The others differ in arithmetic only, which their own tests check."""
OTHER_TEAMS = {"gigpo", "sharp"}
"""They need rewards of single steps (below), and a planner (above)."""
ALGORITHMS = [
    pytest.param(name, marks=() if name in FAST else LONG)
    for name in sorted({*plugins.discover().names("algorithms")} - OTHER_TEAMS)
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm(algorithm: str, tmp_path: Path) -> None:
    check(train(tmp_path / "run", INVENTORY, f"marl.algorithm.name={algorithm}"))


@pytest.mark.parametrize(("sampler", "credit"), [("best-of", "null"), ("greedy-tree", "c3")])
def test_a_sampler_and_a_credit(sampler: str, credit: str, tmp_path: Path) -> None:
    parts = (f"marl.algorithm.options.sampler={sampler}", f"marl.algorithm.options.credit={credit}")
    check(train(tmp_path / "run", INVENTORY, "marl.algorithm.name=grpo", *parts))


def test_policies_that_learn_in_turn(tmp_path: Path) -> None:
    """Each learns from all its rows in its steps, and not at all in the others'."""
    turns = "marl.schedule.turns=[[left],[right]]"
    run = train(tmp_path / "run", "magrpo/cpu", turns, "marl.schedule.turn_steps=2", "trainer.test_freq=3", steps=3)
    check(run)
    lines, names = run.lines("train/score"), ("left", "right")
    learnt = [[name for name in names if f"policy/{name}/loss" in line] for line in lines]
    assert learnt == [["left"], ["left"], ["right"]]


ROLES: dict[str, dict[str, tuple[float, float] | None]] = {  # recipe -> agent -> range of its role reward
    "code/code_cpu": {"coder": (0.0, 2.0), "tester": (0.0, 2.0)},
    "games/cover": {"agent-1": None, "agent-2": None},
    "math/math_cpu": {"solver": (-0.1, 1.0), "verifier": (-0.1, 1.0)},
    "search/search_cpu": {"verifier": (-0.1, 1.0), "searcher": (-0.1, 1.0), "answerer": (0.0, 1.0)},
    "writing/writing_cpu": {"one": None, "two": None},
    "self_play/proposer_solver_cpu": {"proposer": (-1.0, 1.0), "solver": (0.0, 1.0)},
}
SIDED = ("red", "blue")
SIDES: dict[str, dict[str, str | None]] = {  # recipe -> agent -> its side
    "self_play/debate_cpu": {"pro": "pro", "con": "con", "judge": None},
    "self_play/inventory_match_cpu": {f"{side}-{role}": side for side in SIDED for role in ("holder", "asker")},
}


@pytest.mark.parametrize("recipe", [pytest.param(name, marks=() if "math" in name else LONG) for name in ROLES])
def test_a_family(recipe: str, tmp_path: Path) -> None:
    rows = check(train(tmp_path / "run", recipe))
    assert {row["agent"] for row in rows} == set(ROLES[recipe])
    for row in rows:
        bounds = ROLES[recipe][row["agent"]]
        assert ("role" in row["rewards"]) == (bounds is not None)
        if bounds is not None:
            assert bounds[0] <= row["rewards"]["role"] <= bounds[1]


@pytest.mark.parametrize("recipe", [pytest.param(name, marks=() if "debate" in name else LONG) for name in SIDES])
def test_rivals(recipe: str, tmp_path: Path) -> None:
    rows = check(train(tmp_path / "run", recipe), still={"judge"} if "debate" in recipe else ())
    assert {row["agent"] for row in rows} == set(SIDES[recipe])
    sums: dict[tuple[str, int], dict[str | None, float]] = defaultdict(dict)
    for row in rows:
        sums[row["uid"], row["session"]][SIDES[recipe][row["agent"]]] = row["rewards"]["team"]
    assert all(sum(rewards.values()) == 0 for rewards in sums.values())


def test_a_model_plays_against_a_script(tmp_path: Path) -> None:
    second = ("marl.agents.second.policy=bot", "marl.agents.second.reward=null")
    run = train(tmp_path / "run", "self_play/kuhn_cpu", "marl.policies.bot.script=kuhn-equilibrium", *second)
    assert not any(row["invalid"] for row in check(run, still={"bot"}) if row["agent"] == "second")


STEPS = """
from marl_verl import Workflow, hookimpl

class Steps(Workflow):
    async def run(self, task, team):
        for _ in range(3):
            answer = (await team["asker"].act("message 1 2 3 4 index 2")).text
        return answer

def varied(task, turn, episode):
    return sum(turn.action.response_ids) % 7 / 7

@hookimpl
def marl_register(registry):
    registry.workflow("steps", Steps)
    registry.reward("varied", varied)
"""


def test_steps_from_one_observation_are_compared(tmp_path: Path) -> None:
    """By gigpo, whose steps have rewards of their own."""
    (tmp_path / "steps.py").write_text(STEPS)
    alone = (f"marl.plugins=[{tmp_path / 'steps.py'}]", "marl.workflow.name=steps", "~marl.agents.holder")
    options = (
        "marl.algorithm.name=gigpo",
        "marl.algorithm.options.advantage.step=role",
        "marl.agents.asker.reward=varied",
    )
    rows = check(train(tmp_path / "run", INVENTORY, *alone, "~marl.policies.holder", *options))
    assert {(row["turn"], row["obs"]) for row in rows} == {(turn, rows[0]["obs"]) for turn in range(3)}


@LONG
@pytest.mark.parametrize("name", ["tictactoe", "textarena"])
def test_players_of_an_environment_are_credited(name: str, tmp_path: Path) -> None:
    recipe = OmegaConf.load(RECIPES / "games" / f"{name}.yaml")
    recipe.marl.algorithm = {"name": "grpo", "options": {"credit": "marl_verl_sharp.counterfactual:Counterfactual"}}
    recipe.marl.sampler = {"options": {"episodes": 3}}
    OmegaConf.save(recipe, tmp_path / "recipe.yaml")
    rows = check(train(tmp_path / "run", tmp_path / "recipe.yaml"))
    assert {row["agent"] for row in rows} == {"cross", "nought"}
    assert {"credit"} <= {component for row in rows for component in row["rewards"]}
