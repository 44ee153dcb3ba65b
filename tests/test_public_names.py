"""The plugins use only public names of marl-verl: those in `__all__` of a public module."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "marl_verl",
    *(f"marl_verl.algo.{name}" for name in ("advantage", "algorithms", "credit", "rewards", "sampling")),
    *(f"marl_verl.{name}" for name in ("episode", "errors", "options", "plugins", "tasks")),
    *("marl_verl_agents", "marl_verl_agents.gateway", "marl_verl_sandbox"),
    *("marl_verl_testing", *(f"marl_verl_testing.{name}" for name in ("real", "rows", "workflows"))),
)
# agents of frameworks act by the effects of a run; commands read what a run has written, and check what it needs; the
# checks of parts look inside
INSIDE = ("agents", "leagues", "sandbox", "tiny", "report", "diagnose", "testing")
FOLDERS = [path for path in sorted(ROOT.glob("plugins/*")) if path.name not in INSIDE]
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("marl_verl_*/**/*.py"))]
TESTS = [path for folder in FOLDERS for path in sorted(folder.glob("tests/**/*.py"))]


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a file imports from marl-verl, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("marl_verl", "tests"):
            found += [(node.module, alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] in ("marl_verl", "tests")]
    return found


def test_there_is_something_to_look_at() -> None:
    assert len({path.relative_to(ROOT).parts[1] for path in FILES}) == len(FOLDERS) > 10


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_module_says_what_it_has(name: str) -> None:
    module = importlib.import_module(name)
    for each in module.__all__:
        assert hasattr(module, each), each
    assert (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8").count(f"`{name}`"), "docs/plugins.md lists it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_a_plugin_takes_public_names_only(path: Path) -> None:
    for module, name in imported(path):
        assert module in PUBLIC, f"{module} is not public"
        known = importlib.import_module(module)
        is_module = f"{module}.{name}" in PUBLIC
        assert is_module or (name and name in known.__all__), f"{module} has no public '{name}'"


@pytest.mark.parametrize("path", TESTS, ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_the_tests_of_a_plugin_go_where_it_goes(path: Path) -> None:
    """They need `marl_verl_testing`, and no module of this repository's tests."""
    assert not [module for module, _ in imported(path) if module.split(".")[0] == "tests"]
