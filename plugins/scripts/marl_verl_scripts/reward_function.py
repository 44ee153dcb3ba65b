"""Scores from a user's function: `marl.task.reward: my_reward.py:compute_score`.

    compute_score(data_source, solution_str, ground_truth, extra_info) -> a number, or {"score": a number}

The signature is verl's; all arguments are passed by name. Before a run starts, the setting becomes the task set
`function-scored`, which wraps the recipe's own one. The file is copied into the run directory with its plugin files.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_verl import plugins
from marl_verl.episode.codec import plain
from marl_verl.errors import MarlError, nearest, shown, user_error
from marl_verl.options import build
from marl_verl.plugins import one_file
from marl_verl.plugins.one_file import REWARDS, load_file, read_file
from marl_verl.tasks.base import SCORED, DetailedScore, Split, Task, TaskSet
from marl_verl_scripts.verl_rows import answer_text

DEFAULT = "compute_score"
KEY, VERL_ROWS = "marl.task.reward", "verl"
PASSED_ON = ("slow", "loads", "read", "measures", "public_score")  # attributes that the wrapped task set decides
ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")


class FunctionScored(TaskSet):
    """Tasks of another task set or of files, whose answers a function scores. A score of 1 or more is a success. Public
    scores and measures are the other task set's, and `scale` and `shift` where its options set them.

    A task's `data` has the function's arguments as verl's rows do (`data_source`, `reward_model.ground_truth`,
    `extra_info`), or the ground truth as `ground_truth` or `answer`. Without `extra_info`, it is the whole `data`.

    Options:
        function: FILE.py:NAME.
        kwargs: more arguments of the function.
        task, options: the task set that generates the tasks, and its options; null: tasks come from files.
    """

    function: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    task: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._fn = function(self.function, self.kwargs)
        base = TaskSet if self.task is None else plugins.load().get("tasks", self.task)
        self._base: TaskSet = build(base, self.options, "marl.task.options")
        for name in PASSED_ON:
            setattr(self, name, getattr(self._base, name))
        self.scale, self.shift = (float(self.options.get(name, getattr(self, name))) for name in ("scale", "shift"))

    @property
    def scored_by(self) -> str:
        """See `marl_verl.tasks.base.name_of`."""
        return f"reward function '{self.function}'"

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        if self.task is None:
            raise MarlError(f"{KEY} scores tasks and generates none: set marl.task.{split}_file")
        return self._base.generate(split, count, seed)

    def score(self, task: Task, answer: Any) -> Any:
        data, model = task.data, task.data.get("reward_model")
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        for name in ("ground_truth", "answer"):
            truth = data.get(name) if truth is None else truth
        values = (data.get("data_source", self.task), answer_text(plain(answer)), truth, data.get("extra_info", data))
        result = self._fn(**{**dict(zip(ARGUMENTS, values, strict=True)), **self.kwargs})
        return _awaited(result) if inspect.isawaitable(result) else DetailedScore.of(result)


async def _awaited(result: Any) -> Any:
    return DetailedScore.of(await result)


def function(text: str, kwargs: Mapping[str, Any]) -> Callable[..., Any]:
    """The function FILE.py:NAME of the run's reward file. MarlError: no such function, or another signature."""
    file, _, name = text.rpartition(":")
    loaded = [used for used in one_file.files_in_use() if used.name == f"{REWARDS}{file}"]
    if not loaded:
        raise MarlError(f"reward file '{file}' is not loaded: it is in '{REWARDS}' of a run's plugins. Give the run.")
    module = load_file(loaded[0])
    reward: Callable[..., Any] | None = getattr(module, name, None)
    if not callable(reward):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise MarlError(f"reward file '{loaded[0].path}' has no function '{name}': {nearest(name, functions)}")
    with user_error(f"reward function '{text}' must be `def {name}({', '.join(ARGUMENTS)})`", TypeError):
        inspect.signature(reward).bind(**{**dict.fromkeys(ARGUMENTS), **kwargs})
    return reward


def use_reward_function(config: DictConfig, folder: Path) -> list[one_file.PluginFile]:
    """Replace the task set of a composed config by `FunctionScored` if a reward function is set. Returns its files.
    Its path is relative to the recipe's `folder`, else to the working directory. MarlError for an invalid setting."""
    task = config.marl.task
    if task.reward is None:
        return []
    path, _, name = task.reward.rpartition(":") if ".py:" in task.reward else (task.reward, "", DEFAULT)
    if not path.endswith(".py") or not name.isidentifier():
        raise MarlError(f"'{KEY}' must be FILE.py:FUNCTION such as my_reward.py:{DEFAULT}, got {shown(task.reward)}")
    paths = [place / Path(path).expanduser() for place in (folder, Path.cwd())]
    source = next((path for path in paths if path.is_file()), paths[-1])
    file = read_file(f"{REWARDS}{source.name}", source)
    own = None if OmegaConf.is_missing(task, "name") or task.name is None else str(task.name)
    options: Any = OmegaConf.to_container(task.options) if task.options else {}
    if own == VERL_ROWS:
        options["own_score"] = False
    wrapped = {"function": f"{Path(path).name}:{name}", "kwargs": task.reward_kwargs, "task": own, "options": options}
    task.name, task.options = SCORED, {option: value for option, value in wrapped.items() if value not in (None, {})}
    return [file]
