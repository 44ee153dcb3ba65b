"""Task set `verl`: rows as verl's preprocessing scripts write them, scored by verl's own functions.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "..."}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

Uses verl internals: `default_compute_score`, and the data sources that it knows. Some of its scorers evaluate text of a
model in the rollout worker; these are refused.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import random
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from marl_verl.errors import MarlError, MarlWarning, nearest, shown
from marl_verl.extensions import extension
from marl_verl.options import Positive
from marl_verl.tasks.base import DetailedScore, TaskSet
from marl_verl.tasks.task import Split, Task
from marl_verl.tasks.task_files import read_rows

WRITTEN = {"gsm8k": "#### {}", "math_reward": "\\boxed{{{}}}", "math_dapo": "Answer: {}"}
"""File of verl -> how its score wants an answer to be written."""
SEARCH = "searchR1_"


def wrong_truth(source: str, truth: Any) -> str | None:
    """Why no answer would be right by verl's comparison of texts; None if one would."""
    key = "'reward_model.ground_truth'"
    if source.startswith(SEARCH):
        targets = truth.get("target") if isinstance(truth, Mapping) else None
        texts = targets if isinstance(targets, list) else [targets]
        right = texts and all(isinstance(text, str) and text.strip() for text in texts)
        return None if right else f"{key} must be {{target: a text, or a list of texts}}, got {shown(truth)}"
    if not isinstance(truth, str) or not truth.strip():
        return f"{key} must be a text, with which verl compares the text of an answer, got {shown(truth)}"
    name = {"openai/gsm8k": "gsm8k"}.get(source, "math_reward" if "MATH" in source else "math_dapo")
    answer = WRITTEN[name].format(truth)
    if _score(name, answer, truth) >= 1:
        return None
    message = f"verl's score of '{source}' does not find it in the answer {shown(answer)}"
    return f"{key} is {shown(truth)}, and {message}. Correct or remove the row."


def _score(name: str, answer: str, truth: str) -> float:
    with contextlib.redirect_stdout(io.StringIO()):  # verl prints what it cannot parse
        score = _file(name).compute_score(answer, truth)
    return float(score["score"] if isinstance(score, Mapping) else score)


@functools.cache
def _file(name: str) -> ModuleType:
    package = importlib.util.find_spec("verl")
    path = Path(str(package and package.origin)).parent / "utils" / "reward_score" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"marl_verl_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMPARED = (  # scored by comparing texts; besides these, every source that begins with "aime"
    *("openai/gsm8k", "lighteval/MATH", "DigitalLearningGmbH/MATH-lighteval", "HuggingFaceH4/MATH-500", "math_dapo"),
    *("math", "math_dapo_reasoning", "searchR1_nq", "searchR1_triviaqa", "searchR1_popqa", "searchR1_hotpotqa"),
    *("searchR1_2wikimultihopqa", "searchR1_musique", "searchR1_bamboogle"),
)
AIME = "aime"
EVALUATED = (  # verl's `prime_math` calls `eval` on the answer
    *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12"),
    "numina_olympiads",
)
PROGRAMS = ("codecontests", "apps", "codeforces", "taco")  # run by a server, or a distribution (group `score`)
SERVER = "marl.task.options.sandbox_url"
IMAGES = ("hiyouga/geometry3k",)
MEDIA = ("images", "videos", "audios")
USED = ("ability", "reward_model", "extra_info", *MEDIA)
FILES: Mapping[Split, str] = {"train": "train_files", "test": "val_files"}
FORM = "Write it as verl's preprocessing scripts do (docs/from-verl.md), or use another task set (docs/tasks.md)."
OTHERWISE = "Give a function that scores these rows: marl.task.reward=my_reward.py:compute_score"
Max = Literal[-1] | Positive


class VerlRows(TaskSet):
    """Rows of parquet, JSON or JSON lines files in verl's form. A score of 1 or more is a success.

    A prompt of one user message is the task's prompt. Other prompts are in `task.data["messages"]`, and the task's
    prompt has the texts of all messages, so that nothing of a system message is lost in a workflow that reads it.

    Options (named as verl's keys, which `python -m marl_verl.main_ppo` translates):
        train_files, val_files: a file of each split, or several, relative to the working directory.
        prompt_key, reward_fn_key: columns of the prompt and of the data source.
        train_max_samples, val_max_samples: number of rows, drawn at random with `shuffle`, else the first; -1: all.
        sandbox_url, sandbox_concurrent, sandbox_memory_mb: a server of verl's `sandbox_fusion`, which runs programs;
            without a URL they run in the sandbox of the run.
        own_score: whether verl's functions score; false if a reward function does.
    """

    quick = True

    train_files: str | list[str] = field(default_factory=list)
    val_files: str | list[str] = field(default_factory=list)
    prompt_key: str = "prompt"
    reward_fn_key: str = "data_source"
    train_max_samples: Max = -1
    val_max_samples: Max = -1
    shuffle: bool = True
    sandbox_url: str | None = None
    sandbox_concurrent: Positive = 64
    sandbox_memory_mb: Positive = 1024
    own_score: bool = True

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        """Read the tasks of a split; `count` is not used. MarlError names file, row and field."""
        files = self.train_files if split == "train" else self.val_files
        if not files:
            raise MarlError(f"task set 'verl' has no {split} rows: set marl.task.options.{FILES[split]}")
        return self._tasks([files] if isinstance(files, str) else files, split, seed)

    def read(self, path: Path, split: Split) -> list[Task]:
        return self._tasks([str(path)], split, seed=0)

    def _tasks(self, files: Sequence[str], split: Split, seed: int) -> list[Task]:
        rows = [row for file in files for row in self._rows(FILES[split], Path(file).expanduser())]
        most = self.train_max_samples if split == "train" else self.val_max_samples
        if 0 < most < len(rows):
            rows = random.Random(f"data.{FILES[split]} {seed}").sample(rows, most) if self.shuffle else rows[:most]
        seen: Counter[str] = Counter()
        tasks = []
        for place, name, row in rows:
            task = self._task(row, place, name)
            seen[task.id] += 1  # verl allows rows that repeat
            tasks.append(task if seen[task.id] == 1 else Task(f"{task.id}#{seen[task.id]}", task.prompt, task.data))
        return tasks

    def score(self, task: Task, answer: Any) -> Any:
        """verl's score of the answer as text, with its details as parts."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        source, truth = task.data["data_source"], task.data["reward_model"]["ground_truth"]
        if source in PROGRAMS and not self.sandbox_url:
            return float(extension("score", source).score_program(text, truth, self.sandbox_memory_mb))
        from verl.utils.reward_score import default_compute_score

        result = default_compute_score(
            data_source=source,
            solution_str=text,
            ground_truth=truth,
            extra_info=task.data["extra_info"],
            sandbox_fusion_url=self.sandbox_url,
            concurrent_semaphore=self._requests if self.sandbox_url else None,
            memory_limit_mb=self.sandbox_memory_mb,
        )
        return DetailedScore.of(result)

    @functools.cached_property
    def _requests(self) -> threading.Semaphore:
        """Limits concurrent requests to the sandbox."""
        return threading.Semaphore(self.sandbox_concurrent)

    def _rows(self, key: str, path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """(place for errors, name, row) of a file. MarlError if it has none. Unused columns are a MarlWarning, once."""
        unused: dict[str, None] = {}
        number = 0
        for number, row in read_rows(path, f"{key}:"):
            place = f"{key} '{path}', row {number}"
            if not {self.reward_fn_key, "reward_model"} & set(row):
                raise MarlError(f"{place} has neither '{self.reward_fn_key}' nor 'reward_model'. {FORM}")
            unused |= dict.fromkeys(name for name in row if name not in (self.prompt_key, self.reward_fn_key, *USED))
            yield place, f"{path.stem}-{number}", row
        if unused:
            columns = f"{key} '{path}': columns {', '.join(map(str, unused))} are not used"
            warnings.warn(f"{columns}. What a score needs must be in 'extra_info'.", MarlWarning, stacklevel=2)

    def _wrong_truth(self, source: str, truth: Any) -> str | None:
        """Why no answer could be right; None if one could."""
        if truth is None:
            return "'reward_model.ground_truth' is missing. A score needs the right answer."
        if not self.own_score:
            return None
        if (why := refusal(source)) is not None:
            return f"'{self.reward_fn_key}' is '{source}', {why}"
        if source not in PROGRAMS:
            return wrong_truth(source, truth)
        if self.sandbox_url:  # verl's server reads several forms
            usable = isinstance(truth, str | Mapping) and truth
            return None if usable else f"'reward_model.ground_truth' must be tests, got {shown(truth)}"
        if (scorer := extension("score", source)) is None:
            return f"nothing runs programs of '{source}': pip install 'marl-verl[sandbox]', or set {SERVER}"
        return None if (why := scorer.wrong_truth(truth)) is None else str(why)

    def _task(self, row: Mapping[str, Any], place: str, name: str) -> Task:
        source, model = _of(row, self.reward_fn_key, str, place), _of(row, "reward_model", Mapping, place)
        if media := next((column for column in MEDIA if row.get(column)), None):
            raise MarlError(f"{place} has {media}: agents see text only. Use other rows, or train it with verl.")
        if why := self._wrong_truth(source, model.get("ground_truth")):
            raise MarlError(f"{place}: {why}")
        info = _of({"extra_info": {}, **row}, "extra_info", Mapping | None, place) or {}
        messages = _messages(_of(row, self.prompt_key, str | Sequence, place), f"{place}: '{self.prompt_key}'")
        data = {"data_source": source, "reward_model": dict(model), "extra_info": dict(info)}
        if len(messages) > 1 or messages[0]["role"] != "user":
            data["messages"] = messages
        if info.get("index") is not None:
            name = "-".join(str(part) for part in (info.get("split"), info["index"]) if part is not None)
        return Task(f"{source}-{name}", "\n\n".join(message["content"] for message in messages), data)


def observation(task: Task) -> str | list[dict[str, str]]:
    """What an agent that is given a whole task sees: its messages, else its prompt."""
    return task.data.get("messages") or task.prompt


def refusal(source: str) -> str | None:
    """Why verl's own functions must not or cannot score rows of a data source; None if they can."""
    if source in (*COMPARED, *PROGRAMS) or source.startswith(AIME):
        return None
    if source in EVALUATED:
        return f"for which verl evaluates a model's text as Python. {OTHERWISE}."
    if source in IMAGES:
        return "whose rows have images: agents see text only."
    near = nearest(source, (*COMPARED, *PROGRAMS, "aime2024"))
    hint = near if near.startswith("did") else "it is not one of its data sources."
    return f"for which verl has no score: {hint} {OTHERWISE}."


def _of(row: Mapping[str, Any], name: str, hint: Any, place: str) -> Any:
    """A column of a row. MarlError if it is missing or has another type."""
    if name not in row:
        raise MarlError(f"{place} has no '{name}': {nearest(name, map(str, row))}")
    if not isinstance(row[name], hint):
        wanted = {str: "a text", str | Sequence: "a list of messages"}.get(hint, "an object")
        raise MarlError(f"{place}: '{name}' must be {wanted}, got {shown(row[name])}")
    return row[name]


def _messages(prompt: str | Sequence[Any], where: str) -> list[dict[str, str]]:
    """A prompt as messages with `role` and `content`. MarlError for anything else."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    for message in messages or [None]:
        set_keys = {key: value for key, value in message.items() if value is not None} if message else {}
        if set_keys.keys() != {"role", "content"} or not all(isinstance(text, str) for text in set_keys.values()):
            raise MarlError(f"{where} must have messages {{role: text, content: text}}, got {shown(message)}")
    return [{"role": message["role"], "content": message["content"]} for message in messages]
