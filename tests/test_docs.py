"""What the docs show runs: a plugin, options on the algorithm that they are shown for, and parts of recipes."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.advantage import RowTable
from marl_verl.cli.describe import describe
from marl_verl.cli.prepare import plan_run
from marl_verl.parts import algorithm_named
from tests.batches import SHIPPED, row

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "algorithms.md").read_text(encoding="utf-8")
SAMPLING = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "sampling.md").read_text(encoding="utf-8"), re.DOTALL)


def block(language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return str(code)


def test_the_options_are_options() -> None:
    shown = yaml.safe_load(block("yaml"))["marl"]["algorithm"]
    algorithm = algorithm_named(shown["name"], shown["options"], "options")
    rows = [
        {**row("q", s, t, t, "a", team=1.0 * s, role=0.5 * t), "obs": "x"} for s in range(3) for t in range(2 + s % 2)
    ]
    assert np.isfinite(algorithm.compute(RowTable.from_rows(rows)).advantage).all()
    comments = re.findall(r"^ +(\w+): .*#(.*)$", block("yaml"), re.MULTILINE)
    kinds = {"returns": "returns", "baseline": "baselines", "std": "scales", "group": "groups", "credit": "credits"}
    for option, comment in comments:
        if option in kinds:
            named = set(re.findall(r"[\w-]+", comment))
            assert set(plugins.discover("").names(kinds[option])) <= named, option


@pytest.mark.slow
@pytest.mark.parametrize("shown", SAMPLING)
def test_what_sampling_shows_fits_the_quickstart(shown: str, tmp_path: Path) -> None:
    recipe = OmegaConf.load(ROOT / "recipes" / "quickstart" / "inventory.yaml")
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(shown)), tmp_path / "shown.yaml")
    plan = plan_run(tmp_path / "shown.yaml", ["marl.task.train_size=40", "marl.task.test_size=5"])
    assert "sample  " in describe(plan)


def test_every_preset_and_loss_has_its_line() -> None:
    named = set(re.findall(r"`([\w+-]+)`", " ".join(line for line in TEXT.splitlines() if line.startswith("|"))))
    assert {*SHIPPED, *plugins.discover("").names("losses")} <= named


def test_the_plugin_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("docs_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    exec(compile(block("python"), "docs/algorithms.md", "exec"), module.__dict__)
    monkeypatch.setattr(plugins, "load", lambda: plugins.assemble({"docs": module}))
    rows = [row("q", s, 0, 0, "a", team=float(s)) for s in range(5)]
    result = algorithm_named("quantile-grpo", {"norm_by_std": False}, "options").compute(RowTable.from_rows(rows))
    np.testing.assert_allclose(result.advantage, np.arange(5) - 3.0)
    other = algorithm_named("grpo", {"baseline": "quantile", "q": 0.5, "norm_by_std": False}, "options")
    np.testing.assert_allclose(other.compute(RowTable.from_rows(rows)).advantage, np.arange(5) - 2.0)
