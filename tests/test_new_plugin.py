"""`marl-verl new-plugin`: the written package works unchanged, and a failure leaves no files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
from marl_verl_testing import new_plugin

import marl_verl
from marl_verl.cli.main import main
from tests.sites import add_distribution, python_path

ROOT = Path(marl_verl.__file__).parents[1]


def installed(folder: Path, site: Path) -> dict[str, str]:
    """Variables of a process that has the package in `folder` installed: its metadata are written to `site`."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["marl_verl"]
    add_distribution(site, project["name"], points, "0.1.0", project["dependencies"])
    return {**os.environ, **python_path(site, folder), "PYTHONDONTWRITEBYTECODE": "1"}


def python(*arguments: str, cwd: Path, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )


def new(folder: Path, name: str, *more: str) -> int:
    return main(["new-plugin", name, "--output", str(folder), *more])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """(a generated package, variables with which it is installed)."""
    folder = tmp_path_factory.mktemp("new") / "somewhere else"
    assert new(folder, "marl-verl-Team_play") == 0
    return folder, installed(folder, tmp_path_factory.mktemp("site"))


def test_its_own_tests_pass(package: tuple[Path, dict[str, str]]) -> None:
    folder, variables = package
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", cwd=folder, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed, 1 deselected", done.stdout)
    assert passed, done.stdout
    tests = sum(text.count("\ndef test_") for text in (path.read_text() for path in (folder / "tests").glob("*.py")))
    assert int(passed[1]) >= tests - 1


@pytest.mark.slow
def test_its_recipe_composes(package: tuple[Path, dict[str, str]]) -> None:
    folder, variables = package
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow", cwd=folder, env=variables)
    assert re.search("1 passed", done.stdout), done.stdout + done.stderr


def test_the_parts_that_authors_write_most_are_registered(package: tuple[Path, dict[str, str]]) -> None:
    folder, variables = package
    done = python("-m", "marl_verl.cli.main", "plugins", "--json", cwd=folder, env=variables)
    assert done.returncode == 0, done.stderr
    record = next(entry for entry in json.loads(done.stdout) if entry["plugin"] == "marl-verl-team-play")
    assert record["hooks"] == ["marl_register"]
    assert set(record["names"]) == {"tasks", "workflows", "rewards", "samplers", "algorithms"}
    assert all(
        name == "team-play" or name.startswith("team-play-") for names in record["names"].values() for name in names
    )
    targets = {target.split(":")[0].split(".")[1] for names in record["names"].values() for target in names.values()}
    assert targets == {path.stem for path in (folder / "marl_verl_team_play").glob("*.py")} - {"__init__"}


def test_only_public_names_are_imported(package: tuple[Path, dict[str, str]]) -> None:
    """A plugin that is to outlive a release does what this one shows."""
    folder, _ = package
    found = 0
    for path in folder.rglob("*.py"):
        for source, names in re.findall(r"^from (marl_verl(?:\.[\w.]+)?) import (.+)$", path.read_text(), re.MULTILINE):
            public = __import__(source, fromlist=["*"])
            for name in names.split(", "):
                found += 1
                there = getattr(public, "__all__", None)
                assert name in there if there is not None else hasattr(public, name), f"{path.name}: {source}.{name}"
    assert found > 15


@pytest.mark.parametrize("name", ["x", "q" * new_plugin.LONGEST])
def test_ruff_is_content_with_any_name(name: str, tmp_path: Path) -> None:
    assert new(tmp_path / "it", name) == 0
    for arguments in (["check", "."], ["format", "--check", "."]):
        done = python("-m", "ruff", *arguments, "--no-cache", cwd=tmp_path / "it")
        assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_of_the_scaffold_is_left(package: tuple[Path, dict[str, str]]) -> None:
    folder, _ = package
    for path in [folder, *folder.rglob("*")]:
        if "__pycache__" not in str(path) and path.is_file():
            assert not re.search("my.method", path.read_text(), re.IGNORECASE), path
    assert len([path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in str(path)]) <= 10


def test_it_asks_for_the_versions_that_it_was_written_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(new_plugin, "__version__", "2.11.3")
    assert new(tmp_path / "it", "my-team") == 0
    project = tomllib.loads((tmp_path / "it" / "pyproject.toml").read_text())["project"]
    assert "marl-verl>=2.11,<2.12" in project["dependencies"]
    assert project["name"] == "my-team"


# What is refused


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my method", "'my method' cannot be the name of a plugin"),
        ("3d-team", "'3d-team' cannot be"),
        ("x" * 33, "at most 32 characters"),
        ("Sharp", "plugin 'sharp' already exists"),
        ("NumPy", "distribution 'numpy' already exists"),
        ("json", "module 'json' already exists"),
        ("grpo", "algorithm 'grpo' of marl-verl .* already exists"),
    ],
)
def test_an_invalid_name_raises(name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", f"--output={tmp_path / 'it'}", "--", name]) == 2
    errors = capsys.readouterr().err
    assert re.search(message, errors), errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_already_is_left_alone(there: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "it"
    {"folder": place.mkdir, "file": place.touch, "link": lambda: place.symlink_to("nowhere")}[there]()
    before = sorted(tmp_path.rglob("*"))
    assert new(place, "my-team") == 2
    assert "' already exists: " in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_half_written_is_left(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_text
    written = []

    def fails(self: Path, *args: str, **how: str) -> int:
        written.append(self)
        if len(written) == 7:
            raise error
        return write(self, *args, **how)

    monkeypatch.setattr(Path, "write_text", fails)
    assert new(tmp_path / "it", "my-team") == (2 if isinstance(error, OSError) else 130)
    assert "No space left on device" in (message := capsys.readouterr().err) or "interrupted" in message
    assert not list(tmp_path.iterdir())
