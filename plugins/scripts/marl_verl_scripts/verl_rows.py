"""Task set `verl`: rows as verl's preprocessing scripts write them, scored by verl's own functions.

    {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "..."}], "ability": "math",
     "reward_model": {"style": "rule", "ground_truth": "72"}, "extra_info": {"split": "train", "index": 0}}

Uses verl internals: `default_compute_score`, and the data sources that it knows. Some of its scorers evaluate text of a
model in the rollout worker; these are refused.
"""

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from marl_verl.errors import MarlError, user_error
from marl_verl.extensions import extension
from marl_verl.options import Positive
from marl_verl.tasks.base import DetailedScore, Split, Task, TaskSet, read_rows

EVALUATED = (  # verl's scores of these call `eval` on the answer, some by sympy
    *("numina_aops_forum", "numina_synthetic_math", "numina_amc_aime", "numina_synthetic_amc", "numina_cn_k12"),
    *("numina_olympiads", "hiyouga/geometry3k"),
)
PROGRAMS = ("codecontests", "apps", "codeforces", "taco")  # run by a distribution (group `score`)
MEDIA = ("images", "videos", "audios")
FILES: Mapping[Split, str] = {"train": "train_files", "test": "val_files"}
FORM = "Write it as verl's preprocessing scripts do (docs/from-verl.md), or use another task set (docs/tasks.md)."
OTHERWISE = "Give a function that scores these rows: marl.task.reward=my_reward.py:compute_score"
Max = Literal[-1] | Positive


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    content: str


class _Row(msgspec.Struct):
    data_source: str
    prompt: str | Annotated[list[_Message], msgspec.Meta(min_length=1)]
    reward_model: dict[str, Any]
    extra_info: dict[str, Any] | None = None


class VerlRows(TaskSet):
    """Rows of parquet, JSON or JSON lines files in verl's form. A score of 1 or more is a success.

    A prompt of one user message is the task's prompt. Other prompts are in `task.data["messages"]`, and the task's
    prompt has the texts of all messages, so that nothing of a system message is lost in a workflow that reads it.

    Options (named as verl's keys, which `python -m marl_verl.main_ppo` translates):
        train_files, val_files: a file of each split, or several, relative to the working directory.
        prompt_key, reward_fn_key: columns of the prompt and of the data source.
        train_max_samples, val_max_samples: number of rows, drawn at random with `shuffle`, else the first; -1: all.
        sandbox_memory_mb: memory of a program, which runs in the sandbox of the run.
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
        rows = [
            (f"{FILES[split]} '{path}', row {number}", f"{path.stem}-{number}", row)
            for path in (Path(file).expanduser() for file in files)
            for number, row in read_rows(path, f"{FILES[split]}:")
        ]
        most = self.train_max_samples if split == "train" else self.val_max_samples
        if 0 < most < len(rows):
            rows = random.Random(f"data.{FILES[split]} {seed}").sample(rows, most) if self.shuffle else rows[:most]
        if self.own_score and any(row.get(self.reward_fn_key) not in PROGRAMS for _, _, row in rows):
            import_module("verl.utils.reward_score")  # takes seconds, which are not those of a rehearsal's score
        seen: Counter[str] = Counter()
        tasks = []
        for place, name, row in rows:
            task = self._task(row, place, name)
            seen[task.id] += 1  # verl allows rows that repeat
            tasks.append(task if seen[task.id] == 1 else Task(f"{task.id}#{seen[task.id]}", task.prompt, task.data))
        return tasks

    def score(self, task: Task, answer: Any) -> Any:
        """verl's score of the answer as text, with its details as parts."""
        text, source, truth = answer_text(answer), task.data["data_source"], task.data["reward_model"]["ground_truth"]
        if source in PROGRAMS:
            return float(extension("score", source).score_program(text, truth, self.sandbox_memory_mb))
        from verl.utils.reward_score import default_compute_score

        with user_error(f"verl has no score of '{source}'. {OTHERWISE}", NotImplementedError):
            return DetailedScore.of(default_compute_score(source, text, truth, task.data["extra_info"]))

    def reference(self, task: Task) -> Any:
        """The right answer as verl's score of its data source expects it; None for programs."""
        source, truth = task.data["data_source"], task.data["reward_model"]["ground_truth"]
        if source in PROGRAMS:
            return None
        if source.startswith("searchR1_"):
            target = truth["target"]
            return f"<answer>{target if isinstance(target, str) else target[0]}</answer>"
        form = "\\boxed{{{}}}" if "MATH" in source else "#### {}" if source == "openai/gsm8k" else "Answer: {}"
        return form.format(truth)

    def _refusal(self, source: str, truth: Any) -> str | None:
        """Why verl's own functions must not or cannot score a row; None if they can."""
        if source in EVALUATED:
            return f"verl evaluates a model's text as Python for '{source}'. {OTHERWISE}."
        if source not in PROGRAMS:
            return None
        if (scorer := extension("score", source)) is None:
            return f"nothing runs programs of '{source}': pip install 'marl-verl[sandbox]'"
        return None if (why := scorer.wrong_truth(truth)) is None else str(why)

    def _task(self, columns: Mapping[str, Any], place: str, name: str) -> Task:
        prompt = columns.get(self.prompt_key)
        if isinstance(prompt, list):  # parquet adds keys that one message has to all others
            prompt = [{key: text for key, text in message.items() if text is not None} for message in prompt]
        named = {"prompt": prompt, "data_source": columns.get(self.reward_fn_key)}
        try:
            row = msgspec.convert({**columns, **named}, _Row)
        except msgspec.ValidationError as error:
            raise MarlError(f"{place}: {error}. {FORM}") from error
        if media := next((column for column in MEDIA if columns.get(column)), None):
            raise MarlError(f"{place} has {media}: agents see text only. Use other rows, or train it with verl.")
        if self.own_score and (why := self._refusal(row.data_source, row.reward_model.get("ground_truth"))):
            raise MarlError(f"{place}: {why}")
        info = row.extra_info or {}
        data = {"data_source": row.data_source, "reward_model": row.reward_model, "extra_info": info}
        messages = [_Message("user", row.prompt)] if isinstance(row.prompt, str) else row.prompt
        if len(messages) > 1 or messages[0].role != "user":
            data["messages"] = msgspec.to_builtins(messages)
        if info.get("index") is not None:
            name = "-".join(str(part) for part in (info.get("split"), info["index"]) if part is not None)
        return Task(f"{row.data_source}-{name}", "\n\n".join(message.content for message in messages), data)


def answer_text(answer: Any) -> str:
    """What functions of verl's signature score: the "text" beside "rewards" (role reward `returned`), else JSON."""
    text = answer["text"] if isinstance(answer, Mapping) and answer.keys() == {"text", "rewards"} else answer
    return text if isinstance(text, str) else json.dumps(text)
