"""Which held-out tasks ask a question of the training tasks, whatever their ids are."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence

from marl_verl.tasks.task import SET, Task

BESIDE = ("extra_info", "data_source", SET)  # numbers of rows, and names of files
ROW = "reward_model"
"""What only rows of verl's form have."""
ANSWERS = (ROW, "answer", "answers", "solution", "aliases")


def trained(training: Sequence[Task], test: Iterable[Task], files: bool) -> list[Task]:
    """The test tasks that are training tasks: in rows of files those with the same question, apart from white space and
    a system message; of generated tasks those with the same id.

    A question that several training tasks ask with different answers, as in a game whose prompt is always the same, is
    another one with another answer. If all have the same question and answer, tasks are compared by their ids.
    """
    answers = defaultdict[str, set[str]](set)
    for task in training:
        answers[_question(task)].add(_answer(task))
    alike = len(training) > 1 and len(answers) == 1 and len(next(iter(answers.values()))) == 1
    if alike or not (files or any(ROW in task.data for task in training)):
        ids = {task.id for task in training}
        return [task for task in test if task.id in ids]
    known = ((task, answers.get(_question(task), ())) for task in test)
    return [task for task, right in known if len(right) == 1 or _answer(task) in right]


def _question(task: Task) -> str:
    """What is asked: the text that is not the system's, and the data but the answer."""
    data = {name: value for name, value in task.data.items() if name not in (*BESIDE, *ANSWERS)}
    messages, text = data.get("messages"), task.prompt
    if ROW in task.data and isinstance(messages, list):
        text = " ".join(message["content"] for message in data.pop("messages") if message["role"] != "system")
    return json.dumps([text.split(), data], sort_keys=True)


def _answer(task: Task) -> str:
    return json.dumps({name: task.data[name] for name in ANSWERS if name in task.data}, sort_keys=True)
