"""From a recipe and overrides to one checked config: verl's Hydra config below, the recipe above, typing errors caught."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.errors import MarlError, nearest
from marl_verl.platforms.active import has_accelerator

HERE = Path(__file__).parent

# free-form parts of the config: whatever stands below them belongs to somebody else
OPEN = ("marl.agents", "marl.policies", "marl.task.options", "marl.workflow.options", "marl.algorithm.options")
OPEN += ("marl.sampler.options", "ray_kwargs.ray_init")


def compose(recipe: Path, overrides: list[str], hardware: str | None = None) -> DictConfig:
    """The config of a recipe with `key=value` overrides, not yet resolved.

    Args:
        recipe: a YAML file whose defaults list begins with `marl_trainer`.
        overrides: in Hydra's grammar, e.g. `trainer.total_training_steps=10`, `+new.key=1`.
        hardware: "cpu" or "gpu"; None looks at the machine.

    Raises:
        MarlError: no such file, not YAML, no `marl_trainer`, an unknown key (the nearest valid one is named).
    """
    _check_recipe(recipe)
    kind = hardware or ("gpu" if has_accelerator() else "cpu")
    config = _hydra(recipe.resolve().parent, recipe.stem, [f"hardware={kind}", *overrides])
    base = _hydra(HERE, "marl_trainer", [f"hardware={kind}"])
    added = tuple(_added_keys(overrides))
    check_keys(OmegaConf.to_container(config), OmegaConf.to_container(base), "", OPEN + added)
    return config


def _check_recipe(recipe: Path) -> None:
    if not recipe.is_file():
        near = [str(path) for path in sorted(recipe.parent.glob("*.yaml"))] if recipe.parent.is_dir() else []
        raise MarlError(f"no recipe file '{recipe}': {nearest(str(recipe), near)}")
    try:
        content = yaml.safe_load(recipe.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise MarlError(f"recipe '{recipe}' is not YAML: {' '.join(str(error).split())}") from error
    defaults = content.get("defaults") if isinstance(content, dict) else None
    if not isinstance(defaults, list) or "marl_trainer" not in defaults:
        raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]'")


def _hydra(folder: Path, name: str, overrides: list[str]) -> DictConfig:
    """Compose with our config folder and verl's on the search path, without importing verl (seconds)."""
    verl = importlib.util.find_spec("verl")
    if verl is None or verl.origin is None:
        raise MarlError("verl is not installed: pip install 'marl-verl[cpu]' or 'marl-verl[vllm]'")
    search = [f"file://{HERE}", f"file://{Path(verl.origin).parent / 'trainer' / 'config'}"]
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            return hydra_compose(config_name=name, overrides=[f"hydra.searchpath=[{','.join(search)}]", *overrides])
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, folder, name, overrides) from error


def _explained(error: Exception, folder: Path, name: str, overrides: list[str]) -> MarlError:
    """Hydra's message as one sentence, with the nearest valid key where an override names none."""
    first = str(error).strip().splitlines()[0]
    if "Could not override" in first:
        key = first.split("'")[1]
        base = OmegaConf.to_container(_hydra(HERE, "marl_trainer", []))
        return MarlError(f"unknown key '{key}': {nearest(key, dict(_paths(base)))}")
    return MarlError(f"config '{folder / name}.yaml' with {overrides[1:]}: {first}")


def _added_keys(overrides: list[str]) -> Iterator[str]:
    """The keys a user adds on purpose, with Hydra's `+`."""
    for override in OverridesParser.create().parse_overrides(overrides):
        if override.is_add() or override.is_force_add():
            yield override.key_or_group


def _paths(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(node, dict):
        for key, value in node.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path, value
            yield from _paths(value, path)


def check_keys(given: Any, valid: Any, where: str, allowed: tuple[str, ...] = ()) -> None:
    """Raise MarlError on the first key of `given` that `valid` lacks; an empty mapping or null in `valid` takes anything."""
    if not isinstance(given, dict) or not isinstance(valid, dict):
        return
    for key, value in given.items():
        path = f"{where}.{key}" if where else str(key)
        if any(path == name or path.startswith(name + ".") for name in allowed):
            continue
        if key not in valid:
            if any(name.startswith(path + ".") for name in allowed):
                continue
            raise MarlError(f"unknown key '{path}': {nearest(str(key), map(str, valid))}")
        if valid[key] not in ({}, None):
            check_keys(value, valid[key], path, allowed)
