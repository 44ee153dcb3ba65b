"""What the READMEs show runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from marl_verl_testing.real import command
from omegaconf import OmegaConf

PLUGIN = Path(__file__).parents[1]
RECIPES = PLUGIN.parents[1] / "recipes" / "sharp"
TEXT = (PLUGIN / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    assert found
    return [str(code) for code in found]


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_runs_as_written(code: str) -> None:
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.slow
@pytest.mark.parametrize("shown", blocks("yaml"))
def test_a_yaml_block_fits_the_recipe(shown: str, tmp_path: Path) -> None:
    recipe = OmegaConf.load(RECIPES / "cpu.yaml")
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(shown)), tmp_path / "shown.yaml")
    printed = command("train", str(tmp_path / "shown.yaml"), "--dry-run")
    assert "learn   sharp: " in printed
