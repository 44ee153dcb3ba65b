"""marl-verl: train teams of LLM agents with multi-agent reinforcement learning, on unmodified verl.

Scripts and notebooks use `train`, `evaluate`, `explain` and `load_run`; plugins use the other names. Names are imported
lazily, so that `marl-verl --help` and reading files stay fast.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_verl.version import __version__ as __version__

if TYPE_CHECKING:
    from marl_verl.algo.advantage import Advantage
    from marl_verl.algo.algorithms import Algorithm, Loss, Metric
    from marl_verl.algo.rewards import Mix
    from marl_verl.algo.sampling import Sampler
    from marl_verl.api import Run, evaluate, explain, load_run, train
    from marl_verl.episode import Action, Episode, Team, Turn, Workflow
    from marl_verl.errors import MarlError, RunError
    from marl_verl.plugins import hookimpl
    from marl_verl.tasks import Task, TaskSet

_NAMES = {
    "algo.advantage": ("Advantage",),
    "algo.algorithms": ("Algorithm", "Loss", "Metric"),
    "api": ("Run", "evaluate", "explain", "load_run", "train"),
    "episode": ("Action", "Episode", "Team", "Turn", "Workflow"),
    "errors": ("MarlError", "RunError"),
    "plugins": ("hookimpl",),
    "algo.rewards": ("Mix",),
    "algo.sampling": ("Sampler",),
    "tasks": ("Task", "TaskSet"),
}

__all__ = ["Action", "Advantage", "Algorithm", "Episode", "Loss", "MarlError", "Metric", "Mix", "Run"]
__all__ += ["RunError", "Sampler", "Task", "TaskSet", "Team", "Turn", "Workflow"]
__all__ += ["evaluate", "explain", "hookimpl", "load_run", "train"]


def lazy(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose names are imported at their first use; `names`: module -> its names."""
    modules = {name: module for module, listed in names.items() for name in listed}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return load


__getattr__ = lazy(__name__, _NAMES)


def __dir__() -> list[str]:
    return __all__
