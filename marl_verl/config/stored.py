"""Read the stored config of a run, and its team."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.recipe_file import FAST, count_aliases
from marl_verl.errors import MarlError, missing
from marl_verl.files import MOST_DOCUMENT, check_run_directory, read_text
from marl_verl.team import TeamConfig, read_team

COMPOSED = "composed.yaml"
"""The config before policies and interpolations are resolved: overrides of a resumed run apply to it."""

RESOLVED = re.compile(
    r"policies|critics|(actor_rollout_ref|critic|marl\.policies|algorithm\.rollout_correction)\..+|marl\.(run\.folder|critic\.model)"
    r"|data\.(train_files|val_files|val_batch_size)|trainer\.experiment_name"
)
"""Keys that a run directory's config.yaml has in addition, or with other values."""


def read_config(path: Path) -> DictConfig:
    """Read a config that a run has stored. MarlError if it cannot be read, or is no config."""
    return _parsed(path)[0]


def read_resolved(run: Path) -> DictConfig:
    """A run's config.yaml. MarlError as `read_config`, or if it lacks a section."""
    config = read_config(path := run / "config.yaml")
    for name in ("marl", "policies", "critics"):  # the last ones, which a truncated file lacks
        if not isinstance(config.get(name), DictConfig):
            raise MarlError(f"'{path}' is damaged: it has no section '{name}'")
    return config


def read_composed(run: Path) -> DictConfig:
    """A run's composed.yaml. MarlError as `read_config`, or if it lacks a key of config.yaml, e.g. as it is truncated:
    a resumed run would use defaults instead."""
    config, content, whole = _parsed(path := run / COMPOSED)
    if lacking := next(_lacking(content, _parsed(run / "config.yaml")[1]), None):
        raise MarlError(f"'{path}' is damaged: it has no '{lacking}', which config.yaml has")
    if not whole:
        raise MarlError(f"'{path}' is damaged: it is cut off in its last line")
    return config


def _parsed(path: Path) -> tuple[DictConfig, dict[str, Any], bool]:
    """(config of a file, the same as plain containers, whether its last line is complete)."""
    try:
        text = read_text(path, MOST_DOCUMENT)
        if count_aliases(text):  # no run writes one
            raise MarlError(f"'{path}' is not the config of a run: it has YAML aliases")
        content = yaml.load(text, Loader=FAST)
        config = OmegaConf.create(content) if isinstance(content or {}, dict) else None
    except (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        raise MarlError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(content or {}, dict) or not isinstance(config, DictConfig):
        raise MarlError(f"'{path}' is not the config of a run")
    return config, content or {}, text.endswith("\n")


def _lacking(composed: dict[str, Any], resolved: dict[str, Any], where: str = "") -> Iterator[str]:
    """Yield keys of a resolved config that a composed one lacks, except those that resolving adds."""
    for key, value in resolved.items():
        name, other = f"{where}{key}", composed.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            yield from _lacking(other, value, f"{name}.")
        elif (key not in composed or (other is None and value)) and not RESOLVED.fullmatch(name):
            yield name


def marl_section(config: DictConfig) -> dict[str, Any]:
    """The `marl` section, resolved, as plain containers. MarlError if it cannot be resolved."""
    try:
        return OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise MarlError(f"the marl section cannot be resolved: {' '.join(str(error).split())}") from error


def team_of(config: DictConfig) -> TeamConfig:
    """The team of a run's resolved config; all policies may be frozen (evaluation). MarlError as `marl_section`."""
    return read_team(marl_section(config), evaluation=True)


def check_run(folder: Path, *files: str) -> None:
    """Raise MarlError (with the nearest run) unless a folder has these files of a run directory, and no links."""
    check_run_directory(folder)
    absent = [name for name in files if not (folder / name).is_file()]
    if absent and folder.is_dir():
        raise MarlError(f"no run in '{folder}': it has no {absent[0]}. Give the folder of a run, such as runs/NAME.")
    if absent:
        raise missing("run in", folder, [path.parent for path in folder.parent.glob(f"*/{files[0]}")])
