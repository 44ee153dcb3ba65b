"""What the README shows runs: its Python, and its recipe against the real config."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from marl_verl import plugins
from marl_verl.cli.prepare import plan_run
from marl_verl.errors import MarlError
from marl_verl.testing import ScriptedPolicy, check_workflow

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The README's code of one language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """All Python blocks as one module."""
    module = types.ModuleType("readme_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), module.__dict__)
    return module


def test_the_workflow_and_the_task_work_together(shown: types.ModuleType) -> None:
    tasks = shown.Sums()
    task = tasks.generate("train", 5, 0)[3]
    right = str(task.data["sum"])
    policy = ScriptedPolicy(
        {"solver": lambda act: right if "Not accepted" in str(act.observation) else "17", "verifier": "no"}
    )
    run = check_workflow(shown.SolverVerifier(), task, policy)
    assert tasks.score(task, run.answer) == 1.0
    train, test = ({task.id for task in tasks.generate(split, 50, 0)} for split in ("train", "test"))
    assert not train & test


def test_the_hooks_register_both(shown: types.ModuleType) -> None:
    found = plugins.assemble({"my-team": shown}, only=None)
    assert found.get("workflows", "solver-verifier") is shown.SolverVerifier
    assert found.get("tasks", "sums") is shown.Sums


def test_the_recipe_is_right_up_to_its_models(
    shown: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "load", lambda: plugins.assemble({"my-team": shown}, only=None))
    recipe = tmp_path / "team.yaml"
    recipe.write_text(blocks("yaml")[0], encoding="utf-8")
    with pytest.raises(MarlError, match="no model folder of policy 'solver'"):
        plan_run(recipe, [])
