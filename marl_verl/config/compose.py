"""Compose a recipe and overrides over verl's Hydra config, and check every key and value."""

import functools
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.hardware import flash_attention, has_accelerator, on_gpu, ray_address
from marl_verl.config.schema import marl_of
from marl_verl.config.stored import BACKEND
from marl_verl.config.verl_keys import ADDED, check_verl, verl_configs
from marl_verl.errors import MarlError, check_file, check_known, shown, user_error
from marl_verl.options import check_type

HERE = Path(__file__).parent


def attention(dtype: str) -> str:
    """The default attention on a GPU, for an actor that computes in `dtype` (hardware/gpu.yaml)."""
    return "flash_attention_2" if dtype not in ("fp32", "float32") and flash_attention() else "sdpa"


OmegaConf.register_new_resolver("marl_attention", attention, replace=True)
WORKERS = min(max((os.cpu_count() or 1) // 16, 1), 8)  # rollout workers on GPU machines: each keeps one core busy
OmegaConf.register_new_resolver("marl_rollout_workers", lambda: WORKERS, replace=True)


def compose(recipe: Path, overrides: Sequence[str], hardware: str | None = None) -> DictConfig:
    """Compose a recipe with overrides in Hydra's grammar; interpolations stay unresolved.

    `hardware` is "cpu" or "gpu", by default MARL_VERL_HARDWARE, or what this machine has. MarlError for an invalid
    recipe or override.
    """
    _check_recipe(recipe)
    groups, lines = list[str](), list[str]()
    for change in parse_overrides(overrides):
        group, line = change.key_or_group, str(change.input_line)
        if "." not in group and any((folder / group).is_dir() for folder in search_path()):
            groups.append(line)  # selects a whole file of verl's config, e.g. model_engine=megatron
        elif change.is_delete() or change.is_add() or change.is_force_add():
            lines.append(line)
        else:  # a key may be new for Hydra: `check_verl` refuses unknown ones with the nearest one
            lines.append(f"++{line}")
    if not any(line.startswith("hardware=") for line in groups):
        groups.insert(0, f"hardware={hardware or ('gpu' if has_accelerator() else 'cpu')}")
    config = _hydra(recipe.resolve().parent, recipe.stem, [*groups, *lines])
    _check(config)
    return config


def _check_recipe(recipe: Path) -> None:
    """MarlError for a file that is no recipe."""
    with user_error(f"recipe {shown(str(recipe))} cannot be read", OSError, yaml.YAMLError, ValueError):
        check_file("recipe file", recipe, "*.yaml")
        content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    defaults = content.get("defaults") if isinstance(content, dict) else None
    names = defaults if isinstance(defaults, list) else []
    if "marl_trainer" not in names or "_self_" not in names[names.index("marl_trainer") :]:
        raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]', in this order")


def choose_backend(config: DictConfig, overrides: Sequence[str]) -> str:
    """The backend of a new run: that of an override, else `verl` on GPUs and with a Ray address, else the recipe's."""
    backend = config.marl.run.backend
    chosen = any(change.key_or_group == BACKEND for change in parse_overrides(overrides))
    if backend is None or (not chosen and (on_gpu(config) or ray_address(config))):
        return "verl"
    return str(backend)


def with_overrides(config: DictConfig, overrides: Sequence[str], trained: bool = True) -> DictConfig:
    """A copy of a composed config with overrides. `trained`: false for an evaluation, in which policies may act
    greedily. MarlError as `compose`."""
    config = pickle.loads(pickle.dumps(config))  # a quarter of the time of a deep copy
    OmegaConf.set_struct(config, False)
    for change in parse_overrides(overrides):
        key, policies = change.key_or_group, [str(name) for name in config.marl.get("policies") or ()]
        if key.startswith("marl.policies.") and not change.is_add():
            check_known("policy", key.split(".")[2], policies)  # an evaluation would ignore an unknown one
        if change.is_delete():
            parent, _, last = key.rpartition(".")
            OmegaConf.select(config, parent).pop(last, None)
            continue
        with user_error(f"'{change.input_line}' cannot be set", OmegaConfBaseException):
            OmegaConf.update(config, key, change.value(), force_add=True)
    _check(config, trained)
    return config


def _check(config: DictConfig, trained: bool = True) -> None:
    """MarlError for an unknown key or an invalid value; `trained`: whether policies are trained."""
    content: Any = OmegaConf.to_container(config)
    check_type(content.get("marl"), Mapping, "marl")
    marl_of(config)
    check_verl(config, content, defaults_of(config), trained)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar, one at a time, so that an error names the invalid one."""
    changes = []
    for line in overrides:
        try:
            changes.append(OverridesParser.create().parse_override(line))
        except (HydraException, ValueError, RecursionError) as error:  # also a number of thousands of digits
            example = "trainer.total_training_steps=20"
            raise MarlError(f"{shown(line, 200)} is not of the form key=value, e.g. {example}") from error
    return changes


def defaults_of(config: DictConfig) -> Any:
    """A config for the same hardware with defaults only, as plain containers."""
    return _defaults("cpu" if OmegaConf.select(config, "trainer.device") == "cpu" else "gpu")


@functools.cache
def _defaults(hardware: str) -> Any:
    config = _hydra(HERE, "marl_trainer", [f"hardware={hardware}"])
    for key, default in ADDED.items():
        if OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, default, force_add=True)
    return OmegaConf.to_container(config)


def search_path() -> list[Path]:
    """The folders with the configs that recipes extend."""
    return [HERE, verl_configs()]


def _hydra(folder: Path, name: str, overrides: list[str]) -> DictConfig:
    search = ",".join("'" + f"file://{path}".replace("'", r"\'") + "'" for path in search_path())
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            return hydra_compose(config_name=name, overrides=[f"hydra.searchpath=[{search}]", *overrides])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split()).partition(" Config search path:")[0][:500]
        wanted = f" with {' '.join(overrides[1:])}" if overrides[1:] else ""
        raise MarlError(f"config '{folder / name}.yaml'{wanted}: {message}") from error
