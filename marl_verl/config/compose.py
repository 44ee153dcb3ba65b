"""Compose a recipe and overrides over verl's Hydra config, and check every key and value."""

import copy
import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
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

from marl_verl.config.cluster_hardware import cluster_hardware
from marl_verl.config.hardware import HARDWARE_VARIABLE, flash_attention, has_accelerator
from marl_verl.config.recipe_file import HERE, check_recipe, search_path
from marl_verl.errors import MarlError, nearest, shown
from marl_verl.extensions import missing_extras, names
from marl_verl.options import check_type

MOST_LINE = 20_000
"""Characters of an override: Hydra's parser takes seconds for a longer list."""

# free-form sections of the config: their keys are checked by the code that reads them, not here
VERL_OPEN = re.compile(
    r"(.+\.)?(engine_kwargs|override_config|override_transformer_config|override_optimizer_config)(\..+)?"
)
OPEN = re.compile(
    rf"marl\.(agents|policies|pools|critic)(\..+)?|marl\.(task|workflow|algorithm|sampler|validation)\.options(\..+)?"
    r"|marl\.(sampler\.filter|data\.curriculum)(\..+)?"
    rf"|ray_kwargs\.ray_init(\..+)?|(reward\.)?custom_reward_function\.reward_kwargs(\..+)?|{VERL_OPEN.pattern}"
)


TEXTS = ("algorithm.rollout_correction.rollout_is_threshold",)
"""Keys whose default is a number, and which may be a text: two bounds, such as 0.5_5."""
ADDED = (
    *(f"actor_rollout_ref.{part}.fsdp_config.mixed_precision" for part in ("actor", "ref")),
    *("critic.fsdp.mixed_precision", "actor_rollout_ref.rollout.enable_sleep_mode", "marl.run.recipe"),
    *("actor_rollout_ref.model.target_parameters", "critic.model.target_parameters"),
)
"""Keys that the composed config lacks and that a run reads. Hydra's `+` could add any other one, without effect."""


def attention(dtype: str) -> str:
    """The default attention on a GPU, for an actor that computes in `dtype` (hardware/gpu.yaml)."""
    return "flash_attention_2" if dtype not in ("fp32", "float32") and flash_attention() else "sdpa"


def rollout_workers() -> int:
    """The default number of rollout workers on GPU machines (hardware/gpu.yaml): each of them keeps one core busy."""
    return min(max((os.cpu_count() or 1) // 16, 1), 8)


OmegaConf.register_new_resolver("marl_attention", attention, replace=True)
OmegaConf.register_new_resolver("marl_rollout_workers", rollout_workers, replace=True)


def compose(recipe: Path, overrides: Sequence[str], hardware: str | None = None) -> DictConfig:
    """Compose a recipe with overrides in Hydra's grammar; interpolations stay unresolved.

    Args:
        hardware: "cpu" or "gpu". None: MARL_VERL_HARDWARE, or what the run's Ray cluster has, or this machine.

    Raises:
        MarlError: the recipe or an override is invalid.
    """
    check_recipe(recipe)
    given = parse_overrides(overrides)
    if any(change.key_or_group == "hardware" for change in given):
        return _composed(recipe, given, None)
    mine = hardware or ("gpu" if has_accelerator() else "cpu")
    config = _composed(recipe, given, mine)
    if hardware or os.environ.get(HARDWARE_VARIABLE):
        return config
    there = cluster_hardware(config)
    return config if there in (None, mine) else _composed(recipe, given, there)


def _composed(recipe: Path, given: Sequence[Override], hardware: str | None) -> DictConfig:
    """`compose` with parsed overrides; hardware is None if it is one of them."""
    # a config group selects a whole file of verl's config, e.g. model_engine=megatron
    groups = [str(change.input_line) for change in given if _is_group(change)]
    plain = [change for change in given if not _is_group(change)]
    if hardware is not None:
        groups.insert(0, f"hardware={hardware}")
    base, folder = composed_defaults(tuple(groups)), recipe.resolve().parent
    if members := [change for change in plain if _names_a_member(change)]:
        written = _hydra(folder, recipe.stem, groups)
        for change in members:
            _check_name(change, written)
    for change in plain:
        _check_known(change, base)
    config = _hydra(folder, recipe.stem, [*groups, *map(_forced, plain)])
    check_keys(OmegaConf.to_container(config), base, "", ADDED)
    return config


def with_overrides(config: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """Return a copy of a composed config with `key=value` overrides applied. MarlError as `compose`."""
    config = copy.deepcopy(config)
    OmegaConf.set_struct(config, False)
    known: Any = OmegaConf.to_container(config)
    known["marl"]["run"] = dict.fromkeys(names("run")) | known["marl"]["run"]
    for change in parse_overrides(overrides):
        key = change.key_or_group
        _check_known(change, known)
        _check_name(change, config)
        if change.is_delete():
            parent, _, last = key.rpartition(".")
            section = OmegaConf.select(config, parent) if parent else config
            if isinstance(section, DictConfig):
                section.pop(last, None)
            continue
        given = functools.reduce(lambda value, part: {part: value}, reversed(key.split(".")), change.value())
        check_keys(given, known, "", ADDED)
        try:
            OmegaConf.update(config, key, change.value(), force_add=True)
        except OmegaConfBaseException as error:
            raise MarlError(f"'{change.input_line}' cannot be set: {' '.join(str(error).split())}") from error
    return config


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides in Hydra's grammar, one at a time, so that an error names the invalid one."""
    parsed = []
    for line in overrides:
        wrong_form = f"{shown(line, 200)} is not of the form key=value, e.g. trainer.total_training_steps=20"
        if len(line) > MOST_LINE:
            raise MarlError(f"override '{shown(line)}' has {len(line):,} characters: set it in the recipe")
        try:
            change = OverridesParser.create().parse_override(line)
        except (HydraException, ValueError, RecursionError) as error:  # also a number of thousands of digits
            raise MarlError(wrong_form) from error
        if not change.key_or_group:
            raise MarlError(wrong_form)
        if change.is_sweep_override():
            raise MarlError(
                f"'{line}' has several values (a sweep): write a list as [1,2], or quote a text with commas"
            )
        parsed.append(change)
    return parsed


def _adds(change: Override) -> bool:
    """Whether the override adds a key with Hydra's `+`."""
    return change.is_add() or change.is_force_add()


def _forced(change: Override) -> str:
    """The override for Hydra. With `++` a key may be new: in a free-form section, or within a mapping; `check_keys`
    refuses unknown ones."""
    line = str(change.input_line)
    if _adds(change) or change.is_delete():
        return line
    key, added = change.key_or_group, [f"marl.run.{name}" for name in names("run")]
    return f"++{line}" if OPEN.fullmatch(key) or key in added or isinstance(change.value(), dict) else line


def _is_group(change: Override) -> bool:
    group = change.key_or_group
    return "." not in group and any((folder / group).is_dir() for folder in search_path())


def _names_a_member(change: Override) -> bool:
    return not _adds(change) and change.key_or_group.startswith(("marl.agents.", "marl.policies."))


def _check_name(change: Override, config: DictConfig) -> None:
    """MarlError for an override of an agent or policy that the recipe does not define, unless it has a `+`."""
    if _names_a_member(change):
        kind, name = change.key_or_group.split(".")[1:3]
        names = [str(known) for known in OmegaConf.select(config, f"marl.{kind}") or {}]
        if name not in names:
            raise MarlError(f"unknown key '{change.key_or_group}': {nearest(name, names)}")


def _check_known(change: Override, base: Any) -> None:
    """MarlError for an override of a key that `base` lacks, unless it is one of `ADDED` or in a free-form section."""
    key, paths = change.key_or_group, dict(key_paths(base))
    parent, _, last = key.rpartition(".")
    if change.is_delete() and key in paths and not OPEN.fullmatch(key):
        raise MarlError(f"'~{key}' would remove a setting that every run has: set it to another value instead")
    # keys below an empty mapping or null are checked by the code that reads them
    own = _adds(change) and any(f"{key}.".startswith(f"{name}.") for name in ADDED)
    if own or OPEN.fullmatch(key) or key in paths or paths.get(parent, base) in ({}, None):
        return
    # suggest the nearest key, of the same section where it exists, else of all: never list all 600 keys
    beside = [path.rpartition(".")[2] for path in paths if path.rpartition(".")[0] == parent]
    hint, anywhere = nearest(last, beside) if beside else "", nearest(key, paths)
    if hint.startswith("did"):
        hint = hint.replace("'", f"'{parent}." if parent else "'", 1)
    elif anywhere.startswith("did"):
        hint = anywhere
    sections = ", ".join(sorted(path for path in paths if "." not in path))
    raise unknown_key(key, hint or f"valid sections: {sections}")


def unknown_key(key: str, hint: str) -> MarlError:
    """The error for a key that is not there: a hint, or the distribution that may add it."""
    if (name := key.rpartition(".")[2]) in missing_extras():
        hint = f"pip install 'marl-verl[{name}]' adds it"
    return MarlError(f"unknown key '{key}': {hint}")


@functools.cache
def composed_defaults(groups: tuple[str, ...]) -> Any:
    """All keys with their defaults, as plain containers."""
    defaults: Any = OmegaConf.to_container(_hydra(HERE, "marl_trainer", list(groups)))
    defaults["marl"]["run"] |= dict.fromkeys(names("run"))
    return defaults


def _hydra(folder: Path, name: str, overrides: list[str]) -> DictConfig:
    search = ",".join("'" + f"file://{path}".replace("'", r"\'") + "'" for path in search_path())
    try:
        with initialize_config_dir(config_dir=str(folder), version_base=None):
            return hydra_compose(config_name=name, overrides=[f"hydra.searchpath=[{search}]", *overrides])
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        message = " ".join(str(error).split()).partition(" Config search path:")[0]
        wanted = f" with {' '.join(overrides[1:])}" if overrides[1:] else ""
        raise MarlError(f"config '{folder / name}.yaml'{wanted}: {message}") from error


def key_paths(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every key of nested mappings, including keys whose value is a mapping."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            yield path, value
            yield from key_paths(value, path)


def check_keys(given: Any, valid: Any, where: str, allowed: tuple[str, ...] = (), free: re.Pattern[str] = OPEN) -> None:
    """Raise MarlError on the first key of `given` (in section `where`) that `valid` lacks or has with another type.

    An empty mapping or null in `valid` accepts any value, and verl's own keys may be set to null. Keys in `allowed` may
    be new, and sections that match `free` are not checked.
    """
    ours = where.startswith("marl") and free is OPEN
    if not isinstance(given, dict):
        if isinstance(valid, dict) and not _undecided(given) and (given is not None or (ours and valid)):
            raise MarlError(f"'{where}' must be a mapping, got {given!r}")
        return _check_value(given, valid, where, strict=ours)
    if free.fullmatch(where) or valid in ({}, None):
        return
    if not isinstance(valid, dict):
        raise MarlError(f"'{where}' must be a single value such as {valid!r}, got {given!r}")
    for key, value in given.items():
        path = f"{where}.{key}" if where else str(key)
        if any(path == name or path.startswith(name + ".") for name in allowed):
            continue
        if key in valid:
            check_keys(value, valid[key], path, allowed, free)
        elif not any(name.startswith(path + ".") for name in allowed):
            raise unknown_key(path, nearest(str(key), map(str, valid)))


def _undecided(value: Any) -> bool:
    """Whether a value is an interpolation or missing (`???`), so that its type is not known yet."""
    return isinstance(value, str) and (value == "???" or "${" in value)


def _check_value(given: Any, valid: Any, where: str, strict: bool) -> None:
    """Check one value against the type of its default: bool, number, or (in the `marl` section) text."""
    if _undecided(given) or _undecided(valid) or (given is None and not strict):
        return
    if isinstance(valid, bool):
        check_type(given, bool, where)
    elif isinstance(valid, int | float) and where not in TEXTS:
        check_type(given, int if strict and isinstance(valid, int) else float, where)
    elif isinstance(valid, str) and strict:
        check_type(given, str, where)
