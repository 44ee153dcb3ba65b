"""verl's own data keys of a run with task set `verl`: they become the options of the task set."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from marl_verl.config.reward_function import KEY, VERL
from marl_verl.config.verl_keys import at, verl_defaults
from marl_verl.errors import MarlError, shown
from marl_verl.tasks.verl_rows import KEYS, VerlRows, files_of

NAME = "verl"
OPTIONS = {
    "data.train_files": "train_files",
    "data.val_files": "val_files",
    "data.prompt_key": "prompt_key",
    "data.reward_fn_key": "reward_fn_key",
    "data.train_max_samples": "train_max_samples",
    "data.val_max_samples": "val_max_samples",
    "data.shuffle": "shuffle",
    "reward.sandbox_fusion.url": "sandbox_url",
    "reward.sandbox_fusion.max_concurrent": "sandbox_concurrent",
    "reward.sandbox_fusion.memory_limit_mb": "sandbox_memory_mb",
}
"""Key of verl's config -> option of the task set."""
EVERY_RUN = "data.shuffle"
"""The key of `OPTIONS` that every run uses."""


def use_verl_data(config: DictConfig) -> None:
    """Set the options of task set `verl` from verl's keys. MarlError: wrong files, or a key for another task set."""
    task = config.marl.task
    if OmegaConf.is_missing(task, "name"):
        return
    if task.name != NAME:
        return _check_other(config, str(task.name))
    for split in KEYS:
        if task[f"{split}_file"] is not None:
            raise MarlError(f"'marl.task.{split}_file' has no effect on task set 'verl': set {KEYS[split]}")
    options = dict(task.options or {})
    for key, option in OPTIONS.items():
        value = OmegaConf.select(config, key)
        if value not in (None, getattr(VerlRows, option, None)) and option not in options:
            plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            options[option] = files_of(plain, key) if key in KEYS.values() else plain
    if any(OmegaConf.select(config, key if key == KEY else f"{key}.path") for key in (KEY, *VERL)):
        options["own_score"] = False
    task.options = options
    config.data.train_files = config.data.val_files = None  # the run's own copies, once they are written


def _check_other(config: DictConfig, name: str) -> None:
    for key in OPTIONS:
        given, usual = OmegaConf.select(config, key), at(verl_defaults(), key)
        if key != EVERY_RUN and given not in (None, usual):
            file = next((f", and others have marl.task.{split}_file" for split in KEYS if KEYS[split] == key), "")
            problem = f"'{key}' has no effect on task set '{name}', got {shown(given)}"
            raise MarlError(f"{problem}: it is for marl.task.name=verl{file}")
