"""The config of a run: read the stored one, and what it says of team, backend and updates."""

import functools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper, get_yaml_loader
from omegaconf.errors import OmegaConfBaseException

from marl_verl.errors import MarlError, check, missing, user_error
from marl_verl.files import MOST_DOCUMENT, check_run_directory, read_text
from marl_verl.team import TeamConfig, read_team

LOADER: Any = get_yaml_loader()  # refuses a key that is there twice; 1e-3 is a number
DUMPER: Any = get_omega_conf_dumper()
if hasattr(yaml, "CSafeLoader"):  # the parser in Python is slow, and quadratic in the depth
    LOADER, DUMPER = type("Loader", (yaml.CSafeLoader, LOADER), {}), type("Dumper", (yaml.CDumper, DUMPER), {})
BACKEND = "marl.run.backend"
COMPOSED = "composed.yaml"
"""The config before policies and interpolations are resolved: overrides of a resumed run apply to it."""


def read_yaml(path: Path) -> Any:
    """The content of a YAML file. Raises OSError, ValueError, RecursionError or YAMLError."""
    return yaml.load(read_text(path, MOST_DOCUMENT), Loader=LOADER)


def as_yaml(config: DictConfig) -> str:
    """As `OmegaConf.to_yaml`, in less than half of the time."""
    return str(yaml.dump(OmegaConf.to_container(config), Dumper=DUMPER, allow_unicode=True, sort_keys=False))


def read_config(path: Path) -> DictConfig:
    """Read a config that a run has stored. MarlError if it cannot be read, or is no config."""
    with user_error(f"'{path}' cannot be read", OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError):
        config = created(read_yaml(path))
    if not isinstance(config, DictConfig):
        raise MarlError(f"'{path}' is not the config of a run")
    return config


def created(content: Any, key: Any = None, parent: Any = None) -> Any:
    """As `OmegaConf.create` of plain containers, in a third of its time."""
    if type(content) is list:
        section: Any = ListConfig([], key, parent)
        section.__dict__["_content"] += [created(value, place, section) for place, value in enumerate(content)]
        return section
    if type(content) is dict and all(type(name) is str for name in content):
        section = DictConfig({}, key, parent)
        section.__dict__["_content"] |= {name: created(value, name, section) for name, value in content.items()}
        return section
    return DictConfig(content, key, parent) if isinstance(content, dict) else AnyNode(content, key, parent)


def copier(config: DictConfig) -> Callable[[], DictConfig]:
    """A function that returns a copy of a config as it is now, in an eighth of the time of a deep copy."""
    return functools.partial(pickle.loads, pickle.dumps(config))


def marl_section(config: DictConfig) -> dict[str, Any]:
    """The `marl` section, resolved, as plain containers. MarlError if it cannot be resolved."""
    with user_error("the marl section cannot be resolved", OmegaConfBaseException):
        return OmegaConf.to_container(config.marl, resolve=True)  # type: ignore[return-value]


def team_of(config: DictConfig) -> TeamConfig:
    """The team of a run's resolved config; all policies may be frozen (evaluation). MarlError as `marl_section`."""
    return read_team(marl_section(config), evaluation=True)


def is_local(config: DictConfig) -> bool:
    """Whether a run works in this process."""
    return bool(config.marl.run.get("backend") == "local")  # a run of an older version has no such key


def updates_per_batch(config: DictConfig, model: Any) -> int:
    """Optimiser updates per epoch over a batch, whose rows they share equally; `model` is an actor or critic section
    (mini-batches count tasks). A quotient that is not whole is rounded."""
    return max(1, int(config.data.train_batch_size / int(model.ppo_mini_batch_size) + 0.5))


def separate_reason(config: DictConfig, actor: DictConfig) -> str | None:
    """Why rows compute what they have in common separately (`learning/prefixes.py`); None if they share it."""
    if not config.marl.run.get("share_prefixes", True):  # a run of an older version has no such key
        return "marl.run.share_prefixes is false"
    if actor.shuffle:
        return "actor.shuffle mixes rows between updates"
    if (mode := actor.policy_loss.loss_mode) in ("clip_cov", "kl_cov", "geo_mean"):
        return f"loss_mode {mode} depends on the rows of a micro-batch"
    if actor.loss_agg_mode == "seq-mean-token-sum-norm" and actor.loss_scale_factor is None:
        return "seq-mean-token-sum-norm divides by the longest response of a micro-batch: set loss_scale_factor"
    return None


@check
def check_run(folder: Path, *files: str) -> Iterator[str]:
    """Raise MarlError (with the nearest run) unless a folder has these files of a run directory, and no links."""
    absent = [name for name in files if not (folder / name).is_file()]
    if absent and folder.is_dir():
        example = next((path.parent for path in sorted(folder.glob(f"*/{files[0]}"))), "runs/NAME")
        yield f"no run in '{folder}': it has no {absent[0]}. Give the folder of a run, such as {example}."
    if absent:
        yield str(missing("run in", folder, [path.parent for path in folder.parent.glob(f"*/{files[0]}")]))
    check_run_directory(folder)
