"""Two players of PettingZoo and TextArena are trained, by a tree and with counterfactual credit. MARL_VERL_LONG=1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl.testing import real
from tests.e2e.conftest import long

pytestmark = [pytest.mark.e2e, long]

RECIPES = Path(__file__).parents[2] / "recipes" / "games"
WAYS: dict[str, Any] = {
    "greedy-tree": {"algorithm": {"name": "at-grpo"}, "sampler": {"options": {"candidates": 2}}},
    "counterfactual": {
        "algorithm": {"name": "grpo", "options": {"credit": "counterfactual", "group": "agent"}},
        "sampler": {"options": {"episodes": 3}},
    },
}


@pytest.mark.parametrize("recipe_name", ["tictactoe", "textarena"])
@pytest.mark.parametrize("way", WAYS)
def test_players_are_trained(way: str, recipe_name: str, tmp_path: Path) -> None:
    recipe: Any = OmegaConf.load(RECIPES / f"{recipe_name}.yaml")
    recipe.marl.algorithm, recipe.marl.sampler = WAYS[way]["algorithm"], WAYS[way]["sampler"]
    recipe.trainer = {"total_training_steps": 2, "test_freq": 2, "save_freq": 2}
    OmegaConf.save(recipe, tmp_path / "recipe.yaml")
    run = real.train(tmp_path / "recipe.yaml", tmp_path / "run")
    assert run.code == 0, run.output
    assert [line["train/failed_episodes"] for line in run.lines("train/success")] == [0, 0]
    for policy in run.summary["policies"].values():
        assert policy["weight_change"] > 0
    rows = [row for step in (1, 2) for row in real.rows(run.folder, step)]
    assert {row["agent"] for row in rows} == {"cross", "nought"}
    if way == "counterfactual":
        assert {"credit"} <= {name for row in rows for name in row["rewards"]}
    else:
        assert len({row["node"] for row in rows}) > 1
