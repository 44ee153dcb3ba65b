"""The examples of the plugin's README run and use registered names."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from marl_verl_testing import ScriptedPolicy, check_workflow
from marl_verl_testing.rows import algorithm
from omegaconf import OmegaConf

from marl_verl import Task, plugins
from marl_verl.algo.advantage import RowTable
from marl_verl.run.describe import describe
from marl_verl.run.prepare import plan_run

HERE = Path(__file__).parents[1]
README = (HERE / "README.md").read_text(encoding="utf-8")
RECIPES = HERE.parents[1] / "recipes" / "at_grpo"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_workflow_shown_proposes_after_every_act() -> None:
    (code,) = blocks("python")
    shown: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), shown)
    workflow = shown["PlanAndWrite"]()  # type: ignore[operator]
    run = check_workflow(workflow, Task("q", "Write."), ScriptedPolicy({"planner": "more", "writer": ["a", "b"]}))
    assert (run.answer, run.proposals) == ("a b", [" more", "a", "a more", "a b"])


@pytest.mark.slow
def test_the_options_shown_are_options(tmp_path: Path) -> None:
    (shown,) = blocks("yaml")
    recipe = OmegaConf.load(RECIPES / "cpu.yaml")
    OmegaConf.save(OmegaConf.merge(recipe, OmegaConf.create(shown)), tmp_path / "shown.yaml")
    plan = plan_run(tmp_path / "shown.yaml", ["marl.task.train_size=40", "marl.task.test_size=5"])
    assert "greedy-tree: candidates=8, partial_value=proposal" in describe(plan)


def test_every_name_that_the_plugin_registers_is_in_the_readme() -> None:
    known = plugins.load()
    mine = {
        name
        for kind in ("tasks", "workflows", "rewards", "samplers", "algorithms")
        for name in known.names(kind)
        if known.entry(kind, name).distribution == "marl-verl-at-grpo"
    }
    assert {"at-grpo", "greedy-tree", "at-plan-path-tiny"} <= mine
    assert mine <= set(re.findall(r"`([\w-]+)`", README))


def test_the_equation_shown_is_what_is_computed() -> None:
    rows = [
        {"uid": "q", "session": 0, "index": k, "turn": 0, "agent": "a", "length": 1, "rewards": {"team": t, "role": r}}
        for k, (t, r) in enumerate([(1.0, 0.5), (0.0, 1.0), (0.0, 0.0)])
    ]
    found = algorithm("at-grpo", **{"alpha": 1.0}).compute(RowTable.from_rows(rows))
    mixed = np.array([1.5, 1.0, 0.0])
    np.testing.assert_allclose(found.advantage, (mixed - mixed.mean()) / (mixed.std(ddof=1) + 1e-6))
