"""Read the stored config of a run, and its team."""

from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.errors import MarlError, missing
from marl_verl.team import TeamConfig, read_team


def read_config(path: Path) -> DictConfig:
    """Read a config that a run has stored. MarlError if it cannot be read."""
    try:
        config = OmegaConf.load(path)
    except (OSError, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        raise MarlError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, DictConfig):
        raise MarlError(f"'{path}' is not the config of a run")
    return config


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
    """Raise MarlError (with the nearest run) unless a folder has these files of a run directory."""
    absent = [name for name in files if not (folder / name).is_file()]
    if absent and folder.is_dir():
        raise MarlError(f"no run in '{folder}': it has no {absent[0]}. Give the folder of a run, such as runs/NAME.")
    if absent:
        raise missing("run in", folder, [path.parent for path in folder.parent.glob(f"*/{files[0]}")])
