"""What the docs show runs: a plugin, options on the algorithm that they are shown for, and parts of recipes."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.advantage import RowTable
from marl_verl.config.parts import algorithm_named
from marl_verl.core_parts import CORE_PARTS
from marl_verl.trainer.describe import describe
from marl_verl.trainer.prepare import plan_run
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
            assert set(CORE_PARTS[kinds[option]]) <= named, option


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
    other = algorithm_named("quantile-grpo", {"q": 0.5, "norm_by_std": False}, "options")
    np.testing.assert_allclose(other.compute(RowTable.from_rows(rows)).advantage, np.arange(5) - 2.0)


def test_the_return_and_the_credit_do_what_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("docs_parts")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(block("py"), "docs/algorithms.md", "exec"), module.__dict__)
    known = plugins.assemble({"docs": module})

    def compute(rows: list[dict[str, Any]], **options: Any) -> Any:
        grpo = known.get("algorithms", "grpo")
        return grpo.with_options(options, find=known.get).compute(RowTable.from_rows(rows))

    rows = [row("q", s, t, t, "a", team=float(s), potential=1.0 + t) for s in range(2) for t in range(2)]
    shaped = compute(rows, returns="potential-based", gamma=0.5)
    assert shaped.reward.tolist() == [0.0, 0.0, 1.0, 1.0]  # the potential is no reward
    assert shaped.ret.tolist() == [0.0, -2.0, 1.0, -1.0]
    rows = [row("q", s, 0, 0, "a", team=1.0, default=0.25 * s, role=10.0) for s in range(3)]
    assert compute(rows, credit="difference").reward.tolist() == [11.0, 10.75, 10.5]
