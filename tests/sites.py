"""Plugins of tests: distributions in a folder for the module path, and parts that are registered in this process."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from marl_verl import plugins


def use_plugin(
    patch: pytest.MonkeyPatch, register: Callable[[plugins.Registry], object], only: str | None = ""
) -> plugins.Registry:
    """`plugins.load` also finds what `register` registers, as plugin "mine"; `only` as in `plugins.assemble`."""
    hook = plugins.hookimpl(lambda registry: register(registry))
    known = plugins.assemble({"mine": SimpleNamespace(marl_register=hook)}, only)
    patch.setattr(plugins, "load", lambda: known)
    return known


def add_distribution(
    site: Path, name: str, points: Mapping[str, str], version: str = "0.1", requires: Iterable[str] = ()
) -> None:
    """Write the metadata of a distribution to the folder `site`. points: plugin -> its module."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
    (info / "entry_points.txt").write_text("[marl_verl]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()))


def python_path(*folders: Path) -> dict[str, str]:
    """The environment variable with which other processes find `folders` before what this one finds."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, [*map(str, folders), os.environ.get("PYTHONPATH")]))}
