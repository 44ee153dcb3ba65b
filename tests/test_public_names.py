"""The plugins use only public names of marl-verl: those in `__all__` of a public module."""

import ast
import importlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PUBLIC = (
    "marl_verl",
    *(f"marl_verl.algo.{name}" for name in ("advantage", "algorithms", "credit", "rewards", "sampling")),
    *(f"marl_verl.{name}" for name in ("episode", "errors", "options", "plugins", "tasks")),
    *("marl_verl_agents", "marl_verl_agents.gateway", "marl_verl_baselines", "marl_verl_datasets", "marl_verl_sandbox"),
    *("marl_verl_testing", *(f"marl_verl_testing.{name}" for name in ("real", "rows", "workflows"))),
)
# agents of frameworks and judges act by the effects of a run; public sets and baselines work as the core does; commands
# read what a run has written, and check what it needs; a backend and the checks of parts look inside
INSIDE = ("agents", "judges", "leagues", "distil", "teacher", "datasets", "sandbox", "tiny", "report", "diagnose")
INSIDE += ("testing", "scripts", "inspect", "asynchronous", "local", "endpoints", "evaluation", "baselines")
FOLDERS = [path for path in sorted(ROOT.glob("plugins/*")) if path.name not in INSIDE]
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("marl_verl_*/**/*.py"))]


def imported(path: Path) -> list[tuple[str, str]]:
    """(module, name) of everything that a file imports from marl-verl, also inside functions."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("marl_verl", "tests"):
            found += [(node.module, alias.name) for alias in node.names]
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names if alias.name.split(".")[0] in ("marl_verl", "tests")]
    return found


def test_a_public_module_says_what_it_has() -> None:
    page = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
    for name in PUBLIC:
        module = importlib.import_module(name)
        assert [each for each in module.__all__ if not hasattr(module, each)] == []
        assert f"`{name}`" in page, "docs/plugins.md lists it"


def test_plugins_take_public_names_only() -> None:
    for path in FILES:
        for module, name in imported(path):
            assert module in PUBLIC, f"{path}: {module} is not public"
            known = importlib.import_module(module)
            is_module = f"{module}.{name}" in PUBLIC
            assert is_module or (name and name in known.__all__), f"{path}: {module} has no public '{name}'"
