"""Modules beside a reward file, as users of verl have them: `from utils import clean` of a `utils.py` in its folder.

A run takes them along with the reward file, as plugin files `reward/modules/NAME.py`. Every process then imports them
by their own names, where nothing that is installed has the name.
"""

from __future__ import annotations

import ast
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

FOLDER = "reward/modules/"


def local_modules(file: Path, folders: Sequence[Path]) -> dict[str, Path]:
    """Name of a plugin file -> path, for each module that a file imports, or they import, and that is in a folder.

    Installed modules come first, as where the files are run.
    """
    modules: dict[str, Path] = {}
    waiting = [(file, "")]
    while waiting:
        path, package = waiting.pop()
        for name in _imported(path, package):
            for part in _with_parents(name):
                for place in folders:
                    base = place.joinpath(*part.split("."))
                    source = next((p for p in (base / "__init__.py", base.with_suffix(".py")) if p.is_file()), None)
                    if source is None or _installed(part.partition(".")[0], folders):
                        continue
                    key = f"{FOLDER}{source.relative_to(place).as_posix()}"
                    if key not in modules:
                        modules[key] = source
                        waiting.append((source, part if source.name == "__init__.py" else part.rpartition(".")[0]))
                    break
    return modules


def source_of(module: str, names: Sequence[str]) -> tuple[str | None, bool] | None:
    """(plugin file of a module, whether it is a package) among the names of plugin files; None: it is not there.

    A folder without `__init__.py` is a package without a file.
    """
    base = FOLDER + module.replace(".", "/")
    for name, package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
        if name in names:
            return name, package
    return (None, True) if any(name.startswith(f"{base}/") for name in names) else None


def _imported(file: Path, package: str) -> Iterator[str]:
    """The modules that a file imports, also in functions; `package`: the one that it is in."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # reported where the file is loaded
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*filter(None, parents), *([node.module] if node.module else [])])
            if module:
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    yield from (".".join(parts[: count + 1]) for count in range(len(parts)))


def _installed(top: str, folders: Sequence[Path]) -> bool:
    """Whether a module is Python's, of an installed distribution, or found elsewhere than in these folders."""
    if top in sys.stdlib_module_names or top in _distributed():
        return True
    here = {folder.resolve() for folder in folders}
    path = [entry for entry in sys.path if Path(entry or ".").resolve() not in here]
    spec = importlib.machinery.PathFinder.find_spec(top, path)
    return spec is not None and spec.origin is not None


@functools.cache
def _distributed() -> frozenset[str]:
    """Top modules of installed distributions, also of those that are installed as editable from a working directory."""
    names = {dist.metadata["Name"] or "" for dist in importlib.metadata.distributions()}
    return frozenset({*importlib.metadata.packages_distributions(), *(name.replace("-", "_") for name in names)})
