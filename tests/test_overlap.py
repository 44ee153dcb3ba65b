"""Which held-out tasks are training tasks."""

from __future__ import annotations

from typing import Any

import pytest

from marl_verl.tasks.base import Task
from marl_verl.tasks.overlap import trained


def row(name: str, question: str, truth: str = "4", system: str = "", **info: Any) -> Task:
    users = [{"role": "user", "content": question}]
    messages = {"messages": [{"role": "system", "content": system}, *users]} if system else {}
    data = {"data_source": "s", "reward_model": {"ground_truth": truth}, "extra_info": info, **messages}
    return Task(name, f"{system}{question}", data)


def plain(name: str, prompt: str, **data: Any) -> Task:
    return Task(name, prompt, data)


@pytest.mark.parametrize(
    ("training", "test", "files", "both"),
    [
        ([row("0", "1 + 1?"), row("1", "2 + 1?")], [row("0", "3 + 1?"), row("1", "4 + 1?")], False, []),
        ([row("a", "1 + 1?", index=0)], [row("b", " 1  + 1?\n", index=9)], False, ["b"]),
        ([row("a", "1 + 1?", "2")], [row("b", "1 + 1?", "2.0")], False, ["b"]),
        ([row("a", "1 + 1?"), row("b", "1 + 2?")], [row("c", "1 + 1?", system="Be brief.")], False, ["c"]),
        ([row("a", "1 + 1?", system="x"), row("b", "2?")], [row("c", "1 + 1?", system="y")], False, ["c"]),
        ([plain("0", "p", answer=1)], [plain("0", "q", answer=1)], True, []),
        ([plain("a", "p", answer=1), plain("b", "q")], [plain("c", "p", answer="1")], True, ["c"]),
        ([plain("a", "p", board=[1])], [plain("b", "p", board=[2]), plain("c", "p", board=[1])], True, ["c"]),
        # a prompt that is always the same: another secret is another task
        ([plain("a", "p", answer=1), plain("b", "p", answer=2)], [plain("c", "p", answer=3)], True, []),
        ([plain("a", "p", answer=1), plain("b", "p", answer=2)], [plain("c", "p", answer=2)], True, ["c"]),
        # nothing but the id tells the tasks apart
        ([plain("a", "p"), plain("b", "p")], [plain("c", "p"), plain("a", "p")], True, ["a"]),
        # a task set that generates its tasks tells them apart by their ids
        ([plain("a", "p", deal="JQ"), plain("b", "q")], [plain("c", "p", deal="JQ"), plain("b", "r")], False, ["b"]),
    ],
)
def test_tasks_are_compared_by_their_questions(
    training: list[Task], test: list[Task], files: bool, both: list[str]
) -> None:
    assert [task.id for task in trained(training, test, files)] == both
