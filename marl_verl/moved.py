"""Modules under the names that they had before 0.1 was rearranged, with a DeprecationWarning, until 0.2.

Distributions add theirs as entry points of the group `marl_verl.moved`.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    **{f"marl_verl.{name}": f"marl_verl.algo.{name}" for name in ("advantage", "algorithms", "credit")},
    **{f"marl_verl.{name}": f"marl_verl.algo.{name}" for name in ("rewards", "sampling")},
    "marl_verl.rollout": "marl_verl.backend.rollout",
}


class _Moved(MetaPathFinder, Loader):
    """Finds modules of `marl_verl` under former names. The last finder reads entry points, for names that no other
    finds; the first one prevents that a module of a moved package is loaded twice."""

    def __init__(self, last: bool) -> None:
        self._last = last

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith("marl_verl."):
            return None
        parent, _, child = name.rpartition(".")
        package = getattr(sys.modules.get(parent), "__name__", parent)
        new = MOVED.get(name) if package == parent else f"{package}.{child}"
        if new is None and self._last:
            from marl_verl.extensions import extension

            new = getattr(extension("moved", name), "__name__", None)
        return None if new is None else ModuleSpec(name, self, origin=new)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        assert spec.origin is not None
        warnings.warn(f"{spec.name} is now {spec.origin}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(spec.origin)
        spec.loader_state = module.__spec__  # an import sets that of the old name
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def install() -> None:
    """Find modules under their former names."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Moved(last=False))
        sys.meta_path.append(_Moved(last=True))
