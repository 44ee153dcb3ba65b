"""Check of a task set: different, reproducible and serialisable tasks, separate splits, and scores in their range."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from marl_verl.errors import user_error
from marl_verl.tasks.base import SPLITS, Split, Task, TaskSet
from marl_verl.threads import perform
from marl_verl_testing.given import SECONDS, must, same, same_elsewhere, time_limit


def check_task(
    tasks: TaskSet,
    answers: Callable[[Task], Sequence[Any]],
    count: int = 8,
    seeds: Sequence[int] = (0, 1),
    scores: tuple[float, float] = (0.0, 1.0),
    seconds: float = SECONDS,
) -> list[Task]:
    """Assert what a run needs of a task set; call it from a test. Returns the training tasks of the first seed.

    Tasks of a seed are the same when they are generated again, also in a process with another hash seed; their ids are
    unique; no test task is a training task, by id and by content, whatever the seeds; a task comes back from JSON as it
    was. Scores, or those of each side (`TaskSet.sides`), are finite numbers within `scores`, and equal for a task from
    JSON, and when asked again.

    Args:
        answers: task -> answers to score, right, wrong and in a bad format.
        count: tasks per split and seed.
    """
    name = f"task set '{type(tasks).__name__}'"
    with time_limit(f"check_task of {name}", seconds):
        made = {(split, seed): tasks.generate(split, count, seed) for split in SPLITS for seed in seeds}
        for (split, seed), batch in made.items():
            must(len(batch) == count, f"{name} made {len(batch)} of {count} {split} tasks")
            must(len({task.id for task in batch}) == count, f"{name} repeats a task id in split {split}")
            same(list(map(_line, batch)), _lines(tasks, split, count, seed), f"{name}, {split} tasks asked for again,")
        for key in (lambda task: task.id, lambda task: json.dumps([task.prompt, task.data])):
            train, test = ({key(task) for seed in seeds for task in made[split, seed]} for split in SPLITS)
            must(not train & test, f"{name} has a test task in training: {min(train & test, default='')!s:.120}")
        for task in (task for batch in made.values() for task in batch):
            _check_scores(tasks, task, answers(task), scores, name)
        training = made["train", seeds[0]]
        compute = partial(_lines, tasks, "train", count, seeds[0])
        same_elsewhere(compute, list(map(_line, training)), f"{name}, split train")
    return training


def _check_scores(tasks: TaskSet, task: Task, answers: Sequence[Any], scores: tuple[float, float], name: str) -> None:
    stored = Task(**json.loads(_line(task)))
    must(stored == task, f"{name}, task '{task.id}' is another one after JSON: {stored!r:.200}")
    for answer in answers:
        score = _score(tasks, task, answer)
        message = f"{name}, task '{task.id}': answer {answer!r:.60} scores {score!r}"
        by_side = score if isinstance(score, Mapping) else {}
        must(set(by_side) == set(tasks.sides), f"{message}, but its `sides` are {tuple(tasks.sides)}")
        for value in by_side.values() or (score,):
            right = isinstance(value, int | float) and scores[0] <= value <= scores[1]
            must(right, f"{message}, not a number from {scores[0]} to {scores[1]}")
        must(score == _score(tasks, task, answer), f"{message}, and another score when asked again")
        must(score == _score(tasks, stored, answer), f"{message}, and another score for the task from JSON")


def _score(tasks: TaskSet, task: Task, answer: Any) -> Any:
    return asyncio.run(perform(tasks.score, (task, answer)))


def _lines(tasks: TaskSet, split: Split, count: int, seed: int) -> list[str]:
    return [_line(task) for task in tasks.generate(split, count, seed)]


def _line(task: Task) -> str:
    with user_error(f"task '{task.id}' cannot be written as JSON", TypeError, ValueError):
        return json.dumps(dataclasses.asdict(task))
