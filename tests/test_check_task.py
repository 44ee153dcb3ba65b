"""`check_task`: a task set that keeps its promises passes, and each broken promise is named."""

from __future__ import annotations

import itertools
from dataclasses import field
from typing import Any

import pytest
from marl_verl_testing import check_task
from marl_verl_tiny.inventory import Inventory

from marl_verl.tasks import Split, Task, TaskSet

COUNTER = itertools.count()


class Numbers(TaskSet):
    """Add one; `wrong` is the promise that it breaks."""

    wrong: str = ""
    calls: list[int] = field(default_factory=list)

    def generate(self, split: Split, count: int, seed: int) -> list[Task]:
        first = 1000 * (split == "test" and self.wrong != "leak") + 100 * seed
        if self.wrong == "again":
            first += next(COUNTER)
        data = {"number": (1, 2)} if self.wrong == "json" else {}
        names = [f"{split if self.wrong == 'leak' else ''}{first + index}" for index in range(count)]
        if self.wrong == "ids":
            names[0] = names[1]
        made = [Task(name, str(first + index), data) for index, name in enumerate(names)]
        return made[1:] if self.wrong == "count" else made

    def score(self, task: Task, answer: Any) -> Any:
        self.calls.append(1)
        if self.wrong == "score":
            return len(self.calls)
        if self.wrong == "range":
            return -1
        return float(answer == str(int(task.prompt) + 1)) if self.wrong != "number" else "right"


def answers(task: Task) -> list[str]:
    return [str(int(task.prompt) + 1), "", "x"]


def test_sound_task_sets_pass() -> None:
    assert len(check_task(Numbers(), answers)) == 8
    check_task(Inventory(), lambda task: [task.data["digits"][task.data["index"] - 1], "none", ""])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("again", "train tasks asked for again, differs"),
        ("leak", "has a test task in training: "),
        ("ids", "repeats a task id in split train"),
        ("count", "made 7 of 8 train tasks"),
        ("json", "is another one after JSON"),
        ("score", "scores 1, and another score|not a number from 0.0 to 1.0"),
        ("range", "scores -1, not a number from 0.0 to 1.0"),
        ("number", "scores 'right', not a number"),
    ],
)
def test_each_broken_promise_is_named(wrong: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_task(Numbers(wrong=wrong), answers)
