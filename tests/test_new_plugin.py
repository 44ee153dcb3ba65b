"""`marl-verl new-plugin`: the written package works unchanged, and a failure leaves no files."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from marl_verl.cli.main import main
from tests.sites import add_distribution, python_path


def installed(folder: Path, site: Path) -> dict[str, str]:
    """Variables of a process that has the package in `folder` installed: its metadata are written to `site`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    add_distribution(site, project["name"], project["entry-points"]["marl_verl"], "0.1.0", project["dependencies"])
    return {**os.environ, **python_path(site, folder), "PYTHONDONTWRITEBYTECODE": "1"}


def python(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )


def new(folder: Path, name: str, *more: str) -> int:
    return main(["new-plugin", name, "--output", str(folder), *more])


@pytest.mark.slow
def test_its_own_tests_pass_and_its_recipe_composes(tmp_path: Path) -> None:
    folder = tmp_path / "somewhere else"
    assert new(folder, "marl-verl-Team_play") == 0
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=folder, env=installed(folder, tmp_path / "site"))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed, done.stdout
    tests = sum(text.count("\ndef test_") for text in (path.read_text() for path in (folder / "tests").glob("*.py")))
    assert int(passed[1]) >= tests


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new(tmp_path, "my-team") == 2
    assert f"'{tmp_path}' exists: choose another --output" in capsys.readouterr().err
    for taken in ("grpo", "marl-verl", "numpy", "class"):
        assert new(tmp_path / "new", taken) == 2
        assert f"'{taken}' cannot be the name of a plugin: a part, a module" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
