"""`check_task` of every registered task set: its own tasks, or rows of a file. MARL_VERL_LONG=1, a process per set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from marl_verl_testing import check_task

from marl_verl import Task, TaskSet, plugins
from marl_verl.options import build
from marl_verl.tasks import Split

TEXTS = ("", "no idea", "7", "\\boxed{7}", "<answer>7</answer>", "left", "[1", "9" * 400)
LOGS = (
    "",
    "player moves U R",
    "planner plans U L\nplayer moves D D",
    "player moves " + "R " * 50,
)  # what workflows write
PAIRS: dict[str, Any] = {
    **dict.fromkeys(("at-plan-path", "at-plan-path-tiny", "plan-path", "plan-path-tiny", "sokoban"), LOGS),
    "sudoku": ("", "player moves r1c1=1", "player moves ?"),
    "joint-code": [
        {"helper": "def aux(x): return x", "main": "def f(x): return aux(x)"},
        {"helper": "", "main": "def ("},
    ],
    "rendezvous": [
        {"left": "a b 1 2", "right": "a b 1 2"},
        {"left": "stay", "right": "stay"},
        {"left": "", "right": "?"},
    ],
    "joint-writing": [{"one": "A short text.", "two": "Moreover, it is a longer text."}, {"one": "", "two": ""}],
    "word-writing": [{"one": "a", "two": "b c"}, {"one": "", "two": ""}],
    **{
        name: [{"outcomes": found, "seats": ["a", "b"], "finished": True} for found in ([1, -1], [0, 0])]
        for name in ("textarena", "pettingzoo")
    },
    "kuhn-poker": [{"text": "", "rewards": {"first": 1.0, "second": -1.0}, "illegal": 0}],
}
RANGES = {"joint-code": (0.0, 4.0), "joint-writing": (0.0, 3.0), "word-writing": (0.0, 3.0), "plan-path": (-1.0, 2.0)}
OPTIONS: dict[str, dict[str, Any]] = {
    "reasoning-gym": {"dataset": "chain_sum"},
    "joint-writing": {"bands": "tldr"},
    "textarena": {"env": "TicTacToe-v0"},
    "pettingzoo": {"env": "pettingzoo.classic.tictactoe_v3"},
    **{name: {"train": "humaneval", "test": "humaneval"} for name in ("code-with-tests", "joint-code")},
}
COUNT = 4


def row(name: str, split: str, number: int) -> dict[str, Any]:
    """A row of a file for the sets that generate nothing."""
    prompt = f"{split} problem {number} about the sum of {number} and 1"
    if name == "verl":
        return {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": prompt}],
            "reward_model": {"ground_truth": "7"},
            "extra_info": {"split": split, "index": number},
        }
    data: dict[str, Any] = {"answer": "7", "answers": ["7"], "paragraphs": [{"title": "A", "text": "It is 7."}]}
    return {"id": f"{split} {number}", "prompt": prompt, "data": data}


class FromFile(TaskSet):
    """A task set with the tasks of a file per split, as a run reads them."""

    name: str
    options: dict[str, Any]
    files: dict[str, str]

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        if self.name == "verl":
            return list(self.inner().generate(split, count, seed))[:count]
        if self.name in ("code-with-tests", "joint-code"):
            first = 0 if split == "test" else 33
            inner = self.inner(**{f"{split}_rows": [first, first + count]})
            return list(inner.generate(split, count, seed))
        return list(self.inner().read(Path(self.files[split]), split))[:count]

    def score(self, task: Task, answer: Any) -> Any:
        return self.inner().score(task, answer)

    def inner(self, **more: Any) -> Any:
        if self.name == "verl":
            more = {"train_files": [self.files["train"]], "val_files": [self.files["test"]]}
        return build(plugins.load().get("tasks", self.name), {**self.options, **more}, "options")


FILES = ("at-final-answers", "dr-mas-math", "dr-mas-search", "math", "multi-hop-paragraphs", "search", "joint-writing")
FROM_FILES = (*FILES, "verl", "code-with-tests", "joint-code")
OTHERS = ("function-scored", "verifiers")  # a set within another, which a reward function scores; test_verifiers.py


def test_every_task_set_is_generated_or_read() -> None:
    for name in set(plugins.load().names("tasks")) - {*FROM_FILES, *OTHERS}:
        made = build(plugins.load().get("tasks", name), OPTIONS.get(name, {}), "options").generate("train", 2, 0)
        assert len(made) == 2, name


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(plugins.load().names("tasks")) - {*OTHERS}))
def test_the_kit_accepts_every_task_set(name: str, tmp_path: Path) -> None:
    options = OPTIONS.get(name, {})
    tasks: TaskSet = build(plugins.load().get("tasks", name), options, "options")
    if name in FROM_FILES:
        files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "test")}
        for split, file in files.items():
            Path(file).write_text("".join(json.dumps(row(name, split, n)) + "\n" for n in range(COUNT)))
        tasks = FromFile(name=name, options=options, files=files)
    answers = PAIRS.get(name, TEXTS)
    check_task(tasks, lambda _: answers, count=COUNT, scores=RANGES.get(name, (-1.0, 1.0)))
