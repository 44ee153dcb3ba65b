"""marl-verl: train teams of LLM agents with multi-agent reinforcement learning, on unmodified verl.

Scripts and notebooks use `train`, `evaluate`, `explain` and `load_run`; plugins use the other names. Names are imported
lazily, so that `marl-verl --help` and reading files stay fast.
"""

import importlib
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
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = ["Action", "Advantage", "Algorithm", "Episode", "Loss", "MarlError", "Metric", "Mix", "Run"]
__all__ += ["RunError", "Sampler", "Task", "TaskSet", "Team", "Turn", "Workflow"]
__all__ += ["evaluate", "explain", "hookimpl", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'marl_verl' has no attribute '{name}'")
    return getattr(importlib.import_module(f"marl_verl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
