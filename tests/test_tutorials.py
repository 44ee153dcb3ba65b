"""The tutorials and the notebooks do what they say: their Python runs, and their parts of recipes compose."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from marl_verl import plugins
from marl_verl.run.describe import describe
from marl_verl.run.prepare import plan_run
from tests.run_folder import run_folder

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "recipes" / "quickstart"
PYTHON = ("tutorial-first-team.md", "tutorial-reward.md", "tutorial-tree.md", "tutorial-algorithm.md")
RECIPES = ("tutorial-first-team.md", "tutorial-reward.md", "tutorial-tree.md")


def blocks(page: str, language: str) -> list[str]:
    """The code of one language, ```python or ```yaml, in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "docs" / page).read_text("utf-8"), re.M | re.S)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with the files of the quickstart, which can be imported there."""
    for name in ("my_team.py", "my_team.yaml"):
        shutil.copy(QUICKSTART / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("my_team", None)
    plugins.use_files([])


def ran(codes: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of a module that consists of all the codes."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their module up
    for code in codes:
        exec(compile(code, name, "exec"), vars(module))
    return vars(module)


@pytest.mark.parametrize("page", PYTHON)
def test_the_python_of_a_tutorial_runs(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ran(blocks(page, "python"), "tutorial", monkeypatch)
    tests = [value for name, value in found.items() if name.startswith("test_")]
    for test in tests:
        test()
    assert tests or "result" in found or "sample" in found, "nothing was shown to work"


@pytest.mark.slow
@pytest.mark.parametrize("page", RECIPES)
def test_the_recipe_of_a_tutorial_composes(page: str, tmp_path: Path) -> None:
    part = blocks(page, "yaml")[-1]  # the first tutorial has its whole recipe before
    if "my_reward.py" in part:
        (tmp_path / "my_reward.py").write_text(blocks(page, "python")[0], encoding="utf-8")
    recipe: Any = OmegaConf.load(tmp_path / "my_team.yaml")
    given: Any = OmegaConf.create(part)
    if "policies" in given.marl:
        del recipe.marl.agents, recipe.marl.policies
    OmegaConf.save(OmegaConf.merge(recipe, given), tmp_path / "shown.yaml")
    described = describe(plan_run(tmp_path / "shown.yaml", ["marl.task.train_size=40", "marl.task.test_size=5"]))
    for name in re.findall(r"name: ([\w-]+)", part):
        assert name in described


def cells(name: str, without: str = "") -> list[str]:
    """The code of a notebook, cell by cell, without those that have a tag."""
    notebook = json.loads((ROOT / "examples" / name).read_text(encoding="utf-8"))
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code"), "clear its outputs"
    used = [each for each in notebook["cells"] if without not in each["metadata"].get("tags", [])]
    return ["".join(cell["source"]) for cell in used if cell["cell_type"] == "code"]


def test_the_notebook_of_the_first_team(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    found = ran(cells("first_team.ipynb", without="trains"), "notebook", monkeypatch)
    assert [episode.session for episode in found["sample"].episodes] == [0, 1, 2, 3]
    assert len(capsys.readouterr().out.splitlines()) == 8
    assert found["result"].advantage.std() > 0
    assert "train(" in cells("first_team.ipynb")[-1]


def test_the_notebook_that_reads_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = run_folder(tmp_path / "runs" / "my_team-1")
    found = ran(cells("reading_a_run.ipynb"), "notebook", monkeypatch)
    assert str(folder).endswith(found["FOLDER"])
    assert [step for step, _ in found["curve"]] == [1, 2, 3]
    assert f"row {found['best']['key']}" in capsys.readouterr().out
