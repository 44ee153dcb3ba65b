"""Scores from a user's function: `marl.task.reward: my_reward.py:compute_score`, or verl's custom reward settings.

    compute_score(data_source, solution_str, ground_truth, extra_info) -> a number, or {"score": a number}
    compute_score_batch(data_sources, solution_strs, ground_truths, extra_infos) -> a list of these

The signatures are verl's; all arguments are passed by name, and a batch is one answer. Before a run starts, the
settings become the task set `function-scored`, which wraps the recipe's own one. The file is copied into the run
directory with its plugin files.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.algo.sampling.context import finite, score_parts
from marl_verl.algo.sampling.scoring import scored
from marl_verl.config.compose import parse_overrides
from marl_verl.config.verl_keys import at, verl_defaults
from marl_verl.episode.calls import breakpoints
from marl_verl.episode.codec import plain
from marl_verl.errors import MarlError, MarlWarning, format_error, nearest, shown
from marl_verl.options import build
from marl_verl.plugins import one_file
from marl_verl.plugins.one_file import REWARDS, load_file, reward_file
from marl_verl.tasks.base import DetailedScore, TaskSet, is_quick
from marl_verl.tasks.task import Split, Task
from marl_verl.tasks.verl_rows import KEYS, VerlRows, files_of

NAME, DEFAULT = "function-scored", "compute_score"
KEY = "marl.task.reward"
VERL = ("reward.custom_reward_function", "custom_reward_function")
TRY_SECONDS = 10.0
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
OF_A_BATCH = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


class FunctionScored(TaskSet):
    """Tasks of another task set or of files, whose answers a function scores. A score of 1 or more is a success.

    A task's `data` has the function's arguments as verl's rows do (`data_source`, `reward_model.ground_truth`,
    `extra_info`), or the ground truth as `ground_truth` or `answer`. Without `extra_info`, it is the whole `data`.

    Options:
        function: FILE.py:NAME.
        kwargs: more arguments of the function.
        experiment: added to `extra_info` as `experiment_name`, as verl's reward manager `gdpo` does.
        task, options: the task set that generates the tasks, and its options; null: tasks come from files.
    """

    function: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    experiment: str | None = None
    task: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fn, self._batch = function(self.function, self.kwargs)
        known = plugins.load()
        base = TaskSet if self.task is None else known.get("tasks", self.task)
        self._base = build(base, self.options, "marl.task.options")

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        if self.task is None:
            raise NotImplementedError(f"{KEY} scores tasks and generates none: set marl.task.{split}_file")
        generated: list[Task] = self._base.generate(split, count, seed)
        return generated

    def loads(self, split: Split) -> str | None:
        return str(loaded) if (loaded := self._base.loads(split)) is not None else None

    def read(self, path: Path, split: Split) -> list[Task]:
        read: list[Task] = self._base.read(path, split)
        return read

    def measures(self, task: Task, answer: Any) -> Any:
        return self._base.measures(task, answer)

    def score(self, task: Task, answer: Any) -> Any:
        model = task.data.get("reward_model")
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        for name in ("ground_truth", "answer"):
            truth = task.data.get(name) if truth is None else truth
        text = answer if isinstance(answer, str) else json.dumps(plain(answer))
        info = task.data.get("extra_info", task.data)
        if self.experiment is not None:
            info = {**(info or {}), "experiment_name": self.experiment}
        arguments = (task.data.get("data_source", self.task), text, truth, info)
        names = OF_A_BATCH if self._batch else ARGUMENTS
        values = [[value] for value in arguments] if self._batch else arguments
        result = self._fn(**{**dict(zip(names, values, strict=True)), **self.kwargs})
        return self._awaited(result) if inspect.isawaitable(result) else self._number(result)

    async def _awaited(self, result: Any) -> Any:
        return self._number(await result)

    def _number(self, result: Any) -> Any:
        """The score in what a function returned: a number, or a mapping with "score"; of a batch the first of these."""
        return DetailedScore.of(result[0] if self._batch else result)


@breakpoints(None)
def check_score(task_set: TaskSet, task: Task, parts: Sequence[str] = ()) -> None:
    """MarlError where a user's score of an empty answer is no number, or lacks `parts`; a MarlWarning where it raises,
    which would fail an attempt of a run."""
    if is_quick(task_set.score) and not parts:
        return
    key, name = "marl.task.name", type(task_set).__name__
    if isinstance(task_set, FunctionScored):
        key, name = KEY, task_set.function
    label = f"{key}: the score of '{name}'"
    try:
        (value,) = asyncio.run(scored(task_set.score, [(task, "")], TRY_SECONDS))
    except Exception as error:  # noqa: BLE001 - it may need a real answer, or a server that is not there yet
        problem = f"{label} raised {format_error(error)} for an empty answer"
        warnings.warn(MarlWarning(f"{problem}: such an attempt fails in a run"), stacklevel=2)
        return
    try:
        score_parts(value, parts)
    except MarlError as error:
        raise MarlError(f"{label}: {error} (marl.algorithm.options.advantage.keys)") from error
    for number in value.values() if isinstance(value, Mapping) else [value]:
        finite(number, label, task_set.score.__qualname__)


def function(text: str, kwargs: Mapping[str, Any]) -> tuple[Callable[..., Any], bool]:
    """(the function FILE.py:NAME of the run's reward file, whether it takes a batch).

    MarlError: no such function, or another signature.
    """
    file, _, name = text.rpartition(":")
    loaded = [used for used in one_file.files_in_use() if used.name == f"{REWARDS}{file}"]
    if not loaded:
        raise MarlError(f"reward file '{file}' is not loaded: it is in '{REWARDS}' of a run's plugins. Give the run.")
    module = load_file(loaded[0])
    reward: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(reward):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise MarlError(f"reward file '{loaded[0].path}' has no function '{name}': {nearest(name, functions)}")
    signature, errors = inspect.signature(reward), []
    for names in (ARGUMENTS, OF_A_BATCH):
        try:
            signature.bind(**{**dict.fromkeys(names), **kwargs})
            return reward, names is OF_A_BATCH
        except TypeError as error:
            errors.append(error)
    right = f"def {name}({', '.join(ARGUMENTS)})"
    problem = f"reward function '{text}' cannot be called with verl's arguments: {errors[0]}"
    raise MarlError(f"{problem}. Write `{right}`.") from errors[0]


def use_reward_function(config: DictConfig, folder: Path) -> list[one_file.PluginFile]:
    """Replace the task set of a composed config by `FunctionScored` if a reward function is set. Returns its files.

    `folder`: that of the recipe, to which paths are relative (else to the working directory; verl's keys the other way
    round). MarlError: two different settings, or a file that cannot be read.
    """
    settings = {key: setting for key in (KEY, *VERL) if (setting := _setting(config, key)) is not None}
    if not settings:
        return []
    (key, (path, name, kwargs)), *others = settings.items()
    for other, setting in others:
        if setting[:2] != (path, name):
            raise MarlError(f"'{key}' and '{other}' name different reward functions: remove one of them")
    places = (folder, Path.cwd()) if key == KEY else (Path.cwd(), folder)  # a verl script's are those of its shell
    paths = [place / Path(path).expanduser() for place in places]
    file = next((path for path in paths if path.is_file()), None)
    if file is None:
        near = [other.name for place in paths for other in place.parent.glob("*.py")]
        where = " or ".join(f"'{place}'" for place in dict.fromkeys(map(str, places)))
        raise MarlError(f"{key}: no file '{path}' in {where}: {nearest(Path(path).name, near)}")
    read = [reward_file(file)]
    task = config.marl.task
    own = None if OmegaConf.is_missing(task, "name") or task.name is None else str(task.name)
    options = OmegaConf.to_container(task.options) if task.options else {}
    gdpo = OmegaConf.select(config, "marl.algorithm.name") == "gdpo"
    experiment = OmegaConf.select(config, "trainer.experiment_name") if gdpo else None
    wrapped = {
        "function": f"{file.name}:{name}",
        "kwargs": kwargs,
        "experiment": experiment,
        "task": own,
        "options": options,
    }
    task.name, task.options = NAME, {option: value for option, value in wrapped.items() if value not in (None, {})}
    for other in VERL:  # verl must not load it from this path again
        if OmegaConf.select(config, f"{other}.path") is not None:
            OmegaConf.update(config, f"{other}.path", None)
    return read


def check_unchanged(overrides: Sequence[str]) -> None:
    """Raise MarlError for an override of the reward function of a run that exists."""
    for change in parse_overrides(overrides):
        if change.key_or_group.startswith((KEY, *VERL)):
            problem = f"'{change.key_or_group}' cannot be changed in an existing run, which has a copy of its function"
            raise MarlError(f"{problem}. Start a new run to use another one.")


def _setting(config: DictConfig, key: str) -> tuple[str, str, dict[str, Any]] | None:
    """(path, name of the function, more arguments) of a setting, or None."""
    setting = OmegaConf.select(config, key)
    path, name = setting, DEFAULT
    kwargs: dict[str, Any] = {}
    if key != KEY:
        section: Any = OmegaConf.to_container(setting) if setting is not None else {}
        path, name = section.get("path"), section.get("name") or DEFAULT
        kwargs = section.get("reward_kwargs") or {}
    elif isinstance(path, str) and ".py:" in path:
        path, _, name = path.rpartition(":")
    if path is None:
        return None
    if not isinstance(path, str) or not path.endswith(".py") or not str(name).isidentifier():
        where = key if key == KEY else f"{key}.path"
        raise MarlError(f"'{where}' must be FILE.py:FUNCTION such as my_reward.py:{DEFAULT}, got {setting!r:.80}")
    return path, str(name), dict(kwargs)


TASK_SET = "verl"
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
    if task.name != TASK_SET:
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
