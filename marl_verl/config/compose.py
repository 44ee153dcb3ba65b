"""Merge a recipe and overrides over verl's config, and check every key and value."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_verl.config.hardware import flash_attention, has_accelerator, on_gpu, ray_address
from marl_verl.config.schema import defaults, marl_of
from marl_verl.config.stored import BACKEND, copier, read_config, read_yaml
from marl_verl.config.verl_keys import ADDED, check_verl, verl_configs
from marl_verl.errors import MarlError, check_file, check_known, shown, user_error
from marl_verl.options import check_type

HERE = Path(__file__).parent
COMPOSED_BY_VERL = "_generated_ppo_trainer.yaml"


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
    changes = parse_overrides(overrides)
    chosen = [str(change.value()) for change in changes if change.key_or_group == "hardware"]
    machine = (chosen or [hardware or ("gpu" if has_accelerator() else "cpu")])[-1]
    check_known("hardware", machine, ("cpu", "gpu"))
    with user_error(
        f"recipe {shown(str(recipe))} cannot be read", OSError, ValueError, yaml.YAMLError, OmegaConfBaseException
    ):
        if recipe.suffix == ".py":
            raise MarlError(f"'{recipe}' is a plugin file, not a recipe: marl-verl train RECIPE --plugin {recipe}")
        check_file("recipe file", recipe, "*.yaml", "give a file in it, or continue a run with --resume")
        content = OmegaConf.create(read_yaml(recipe) or {})
        if not isinstance(content, DictConfig) or content.pop("defaults", None) != ["marl_trainer", "_self_"]:
            raise MarlError(f"recipe '{recipe}' must begin with 'defaults: [marl_trainer, _self_]', in this order")
        config = _base(machine)()
        config.merge_with(content)
    for change in changes:
        if change.key_or_group != "hardware":
            _apply(config, change)
    _check(config)
    return config


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
    stored, config = config, copier(config)()
    for change in parse_overrides(overrides):
        key, policies = change.key_or_group, [str(name) for name in config.marl.get("policies") or ()]
        if key.startswith("marl.policies.") and not change.is_add():
            check_known("policy", key.split(".")[2], policies)  # an evaluation would ignore an unknown one
        _apply(config, change)
    _check(config, trained, stored)
    return config


def _apply(config: DictConfig, change: Override) -> None:
    """Apply an override. A key may be new: `check_verl` refuses unknown ones with the nearest one."""
    key = change.key_or_group
    with user_error(f"'{change.input_line}' cannot be set", OmegaConfBaseException):
        if change.is_delete():
            parent, _, last = key.rpartition(".")
            del OmegaConf.select(config, parent)[last]
        else:
            OmegaConf.update(config, key, change.value(), force_add=True)


def _check(config: DictConfig, trained: bool = True, stored: DictConfig | None = None) -> None:
    """MarlError for an unknown key or an invalid value; `trained`: whether policies are trained; `stored`: as in
    `check_verl`."""
    content: Any = OmegaConf.to_container(config)
    check_type(content.get("marl"), Mapping, "marl")
    marl_of(config)
    check_verl(config, content, defaults_of(config), trained, stored)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar, one at a time, so that an error names the invalid one."""
    changes = []
    for line in overrides:
        try:
            changes.append(OverridesParser.create().parse_override(line))
        except (HydraException, ValueError, RecursionError) as error:  # also a number of thousands of digits
            raise MarlError(f"{shown(line, 200)} is not of the form key=value, e.g. trainer.test_freq=20") from error
        if changes[-1].is_sweep_override():
            raise MarlError(f"{shown(line, 200)} has several values: a list is key=[value, value]")
    return changes


def defaults_of(config: DictConfig) -> Any:
    """A config for the same hardware with defaults only, as plain containers."""
    return _defaults("cpu" if OmegaConf.select(config, "trainer.device") == "cpu" else "gpu")


@functools.cache
def _defaults(hardware: str) -> Any:
    config = _base(hardware)()
    for key, default in ADDED.items():
        if OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, default, force_add=True)
    return OmegaConf.to_container(config)


@functools.cache
def _base(hardware: str) -> Callable[[], DictConfig]:
    """A function that returns copies of what recipes extend: our defaults for a CPU or a GPU over verl's, which its
    package has composed."""
    files = verl_configs() / COMPOSED_BY_VERL, HERE / "hardware" / f"{hardware}.yaml", HERE / "marl_trainer.yaml"
    verls, *ours = map(read_config, files)
    return copier(OmegaConf.merge({"model_engine": "dp"}, verls, {"marl": defaults()}, *ours))  # type: ignore[arg-type]
