"""CPU recipes of task families, of agents with interests of their own and of environments train two steps each, and
two pretrained models write code. MARL_VERL_LONG=1, thirteen starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_tiny.pretrained import SMOLLM2
from omegaconf import OmegaConf

from marl_verl.config.variants import variant_overrides
from marl_verl.testing import real
from tests.e2e.conftest import Finished, long

pytestmark = [pytest.mark.e2e, long]

RECIPES = Path(__file__).parents[2] / "recipes"
STEPS = ("trainer.total_training_steps=2", "trainer.test_freq=2", "trainer.save_freq=2", "marl.task.test_size=20")
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


def trained(recipe: Path, folder: Path, *overrides: str, still: str = "") -> tuple[Finished, list[dict[str, Any]]]:
    """A run of two steps in which nothing fails and all policies but `still` change, and its rows."""
    run = real.train(recipe, folder, *STEPS, *overrides)
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0]
    for name, policy in run.summary["policies"].items():
        assert name == still or policy["weight_change"] > 0
    return run, [row for step in (1, 2) for row in real.rows(run.folder, step)]


@pytest.mark.parametrize("name", ROLES)
def test_a_family_trains(name: str, tmp_path: Path) -> None:
    _, rows = trained(RECIPES / f"{name}.yaml", tmp_path / "run")
    assert {row["agent"] for row in rows} == set(ROLES[name])
    for row in rows:
        bounds = ROLES[name][row["agent"]]
        assert ("role" in row["rewards"]) == (bounds is not None)
        if bounds is not None:
            assert bounds[0] <= row["rewards"]["role"] <= bounds[1]


@pytest.mark.parametrize("name", SIDES)
def test_rivals_are_trained(name: str, tmp_path: Path) -> None:
    _, rows = trained(RECIPES / f"{name}.yaml", tmp_path / "run", still="judge")
    assert {row["agent"] for row in rows} == set(SIDES[name])
    episodes: dict[tuple[str, int], dict[str | None, float]] = {}
    for row in rows:
        episodes.setdefault((row["uid"], row["session"]), {})[SIDES[name][row["agent"]]] = row["team_reward"]
    assert all(sum(rewards.values()) == 0 for rewards in episodes.values())


def test_a_model_is_trained_against_a_script(tmp_path: Path) -> None:
    second = ("marl.agents.second.policy=bot", "marl.agents.second.reward=null")
    bot = ("marl.policies.bot.script=kuhn-equilibrium", *second)
    run, rows = trained(RECIPES / "self_play" / "kuhn_cpu.yaml", tmp_path / "run", *bot, still="bot")
    assert run.summary["policies"]["bot"] == {"parameters": None, "weight_change": 0.0, "frozen": True}
    assert not any(row["invalid"] for row in rows if row["agent"] == "second")


@pytest.mark.parametrize("name", ["tictactoe", "textarena"])
def test_players_of_an_environment_are_credited(name: str, tmp_path: Path) -> None:
    recipe: Any = OmegaConf.load(RECIPES / "games" / f"{name}.yaml")
    recipe.marl.algorithm = {"name": "grpo", "options": {"credit": "counterfactual", "group": "agent"}}
    recipe.marl.sampler = {"options": {"episodes": 3}}
    OmegaConf.save(recipe, tmp_path / "recipe.yaml")
    _, rows = trained(tmp_path / "recipe.yaml", tmp_path / "run")
    assert {row["agent"] for row in rows} == {"cross", "nought"}
    assert {"credit"} <= {component for row in rows for component in row["rewards"]}


def test_pretrained_models_train_with_magrpo_on_humaneval(tmp_path: Path) -> None:
    """MAGRPO's code recipe with the authors' problems and two SmolLM2. Every program runs in the sandbox."""
    SMOLLM2.fetch()
    recipe = RECIPES / "magrpo" / "code.yaml"
    run = real.train(recipe, tmp_path / "humaneval", *variant_overrides(recipe, ["smollm2"]))
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0, 0]
    assert all(policy["weight_change"] > 0 for policy in run.summary["policies"].values())
    problems = set()
    for step in (1, 2, 3):
        lines = (run.folder / "journals" / f"step_{step:05d}.jsonl").read_text().splitlines()
        episodes = [line for line in map(json.loads, lines) if "answer" in line]
        assert {episode["sandbox"] for episode in episodes} == {"isolated"}  # the tier that the recipe requires
        problems |= {episode["task"]["id"] for episode in episodes}
        assert {row["agent"] for row in real.rows(run.folder, step)} == {"helper", "main"}
    assert problems <= {f"HumanEval/{number}" for number in range(33, 164)}
