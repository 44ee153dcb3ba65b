"""marl-verl: train teams of LLM agents with multi-agent reinforcement learning, on unmodified verl.

Scripts and notebooks use `train`, `evaluate`, `explain` and `load_run`; plugins use the other names. Names are imported
lazily, so that `marl-verl --help` and reading files stay fast.
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from marl_verl.version import __version__ as __version__

if TYPE_CHECKING:
    from marl_verl.algo.advantage import Advantage
    from marl_verl.algo.algorithms import Algorithm, Loss, Metric
    from marl_verl.algo.rewards import Mix
    from marl_verl.algo.sampling import Sampler
    from marl_verl.api import Run, load_run, train
    from marl_verl.episode import Action, Episode, Team, Turn, Workflow
    from marl_verl.errors import MarlError, RunError
    from marl_verl.plugins import hookimpl
    from marl_verl.tasks import Task, TaskSet

    evaluate: Callable[..., Any]
    explain: Callable[..., Any]

__all__ = ["Action", "Advantage", "Algorithm", "Episode", "Loss", "MarlError", "Metric", "Mix", "Run"]
__all__ += ["RunError", "Sampler", "Task", "TaskSet", "Team", "Turn", "Workflow"]
__all__ += ["evaluate", "explain", "hookimpl", "load_run", "train"]

ADDED = {"evaluate": "evaluation", "explain": "inspect"}
"""Name that a distribution adds by an entry point of the group `marl_verl.api` -> the extra that installs it."""


def lazy(package: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports a name at its first use, as its file does for type checkers."""

    def load(name: str) -> Any:
        if name not in lazy_names(package):
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(lazy_names(package)[name]), name)

    return load


@functools.cache
def lazy_names(package: str) -> dict[str, str]:
    """Name -> module, of the imports in the file of a package."""
    import ast

    loader: Any = sys.modules[package].__loader__  # a package may be in a zip
    tree = ast.parse(loader.get_source(package))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def __getattr__(name: str) -> Any:
    if name in ADDED:
        from marl_verl.extensions import required

        return required("api", name, f"marl_verl.{name}", ADDED[name])
    return lazy(__name__)(name)


def __dir__() -> list[str]:
    return __all__
