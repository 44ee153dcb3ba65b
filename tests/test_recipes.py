"""Every recipe and every team of docs/teams.md composes, and the resolved team matches its name."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marl_verl.run.describe import describe
from marl_verl.run.prepare import Plan, plan_run

RECIPES = Path(__file__).parents[1] / "recipes"
TEAMS = RECIPES / "teams"
DOCS = (RECIPES.parent / "docs" / "teams.md").read_text(encoding="utf-8")
PLAIN = sorted([*RECIPES.glob("quickstart/*.yaml"), *TEAMS.glob("*.yaml")])  # the others have scripts
SMALL = ["marl.task.train_size=40", "marl.task.test_size=5"]


@functools.cache
def plan(path: Path) -> Plan:
    return plan_run(path, SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("path", PLAIN, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_recipe_is_right(path: Path) -> None:
    assert "policy  " in describe(plan(path))


@pytest.mark.slow
@pytest.mark.parametrize("shown", re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL))
def test_a_team_of_the_docs_is_right(shown: str, tmp_path: Path) -> None:
    recipe = OmegaConf.load(RECIPES / "quickstart" / "inventory.yaml")
    del recipe.marl.agents, recipe.marl.policies  # type: ignore[union-attr]
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(shown)), tmp_path / "shown.yaml")
    described = describe(plan(tmp_path / "shown.yaml"))
    assert described.count("  policy  ") == len(OmegaConf.create(shown).marl.policies)


def test_the_readme_has_every_team() -> None:
    text = (TEAMS / "README.md").read_text(encoding="utf-8")
    assert {path.name for path in TEAMS.glob("*.yaml")} == {
        line.split("`")[1] for line in text.splitlines() if line.startswith("| `")
    }


@pytest.mark.slow
def test_shared_is_one_policy_that_learns_both_roles() -> None:
    shared = plan(TEAMS / "shared.yaml")
    assert shared.team.agents_of("both") == ["holder", "asker"]
    assert list(shared.made["both"].agents) == ["holder", "asker"]


@pytest.mark.slow
def test_lora_has_one_base_and_an_adapter_a_role() -> None:
    lora = plan(TEAMS / "lora.yaml")
    assert lora.made["holder"] == lora.made["asker"]
    assert [policy.lora_rank for policy in lora.team.policies.values()] == [8, 8]


@pytest.mark.slow
def test_frozen_trains_the_small_one_only() -> None:
    frozen = plan(TEAMS / "frozen.yaml")
    assert {name: policy.trained for name, policy in frozen.team.policies.items()} == {"small": True, "large": False}


@pytest.mark.slow
def test_two_families_have_settings_of_their_own() -> None:
    two = plan(TEAMS / "two-families.yaml")
    assert {name: spec.family for name, spec in two.made.items()} == {"qwen": "qwen3", "llama": "llama"}
    qwen, llama = (two.resolved.policies[name].actor_rollout_ref for name in ("qwen", "llama"))
    assert (qwen.actor.policy_loss.loss_mode, llama.actor.policy_loss.loss_mode) == ("vanilla", "gspo")
    assert (qwen.rollout.temperature, llama.rollout.temperature) == (1.0, 1.1)
    assert (qwen.actor.optim.lr, llama.actor.optim.lr) == (1e-3, 5e-4)


@pytest.mark.slow
def test_colocated_is_one_slot() -> None:
    assert "pool both: 1 slot shared by holder, asker" in describe(plan(TEAMS / "colocated.yaml"))
