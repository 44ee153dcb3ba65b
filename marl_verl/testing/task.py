"""Check of a task set: different, reproducible and serialisable tasks, separate splits, and scores in their range."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from marl_verl.errors import MarlError
from marl_verl.tasks.base import SPLITS, Split, Task, TaskSet
from marl_verl.testing.given import SECONDS, both, instance, must, same_elsewhere, time_limit


def check_task(
    tasks: TaskSet,
    answers: Callable[[Task], Sequence[Any]],
    count: int = 8,
    seeds: Sequence[int] = (0, 1),
    scores: tuple[float, float] = (0.0, 1.0),
    seconds: float = SECONDS,
) -> list[Task]:
    """Assert what a run needs of a task set; call it from a test.

    Tasks of a seed are the same when they are generated again, also in processes with other hash seeds; their ids are
    unique; no test task is a training task, by id and by content, whatever the seeds; a task comes back from JSON as it
    was. Scores, or those of each side (`TaskSet.sides`), are finite numbers within `scores`, and equal for a task from
    JSON, and when asked again.

    Args:
        answers: task -> answers to score, right, wrong and in a bad format.
        count: tasks per split and seed.
        scores: minimum and maximum score.
        seconds: time limit of the check.

    Returns:
        The training tasks of the first seed.

    Raises:
        AssertionError: one of the above does not hold.
        MarlError: `tasks` is no task set, or cannot generate or score.
    """
    instance(tasks, TaskSet, "MyTasks(), of a class MyTasks(TaskSet)")
    name = f"task set '{type(tasks).__name__}'"
    with time_limit(f"check_task of {name}", seconds):
        found = {(split, seed): tasks.generate(split, count, seed) for split in SPLITS for seed in seeds}
        for (split, seed), made in found.items():
            must(len(made) == count, f"{name} made {len(made)} of {count} {split} tasks")
            must(len({task.id for task in made}) == count, f"{name} repeats a task id in split {split}")
            again = _lines(tasks, split, count, seed)
            mine = [_line(task) for task in made]
            must(mine == again, f"{name} makes other {split} tasks of seed {seed} when asked again")
        for of in (_identity, _content):
            train, test = (
                {of(task) for (at, _), made in found.items() if at == split for task in made} for split in SPLITS
            )
            must(not train & test, f"{name} has a test task in training: {min(train & test, default='')!s:.120}")
        for task in (task for made in found.values() for task in made):
            _check_scores(tasks, task, list(answers(task)), scores, name)
        first = [_line(task) for task in found["train", seeds[0]]]
        same_elsewhere(partial(_lines, tasks, "train", count, seeds[0]), first, f"{name}, split train")
    return found["train", seeds[0]]


def _check_scores(tasks: TaskSet, task: Task, answers: list[Any], scores: tuple[float, float], name: str) -> None:
    stored = Task(**json.loads(_line(task)))
    must(stored == task, f"{name}, task '{task.id}' is another one after JSON: {both(repr(task), repr(stored))}")
    for answer in answers:
        score = _score(tasks, task, answer)
        what = f"{name}, task '{task.id}': answer {answer!r:.60} scores {score!r}"
        sides = tuple(score) if isinstance(score, Mapping) else ()
        must(set(sides) == set(tasks.sides), f"{what}, but its `sides` are {tuple(tasks.sides)}")
        for each in score.values() if isinstance(score, Mapping) else (score,):
            number = isinstance(each, int | float) and not isinstance(each, bool)
            must(number and scores[0] <= each <= scores[1], f"{what}, not a number from {scores[0]} to {scores[1]}")
        must(score == _score(tasks, task, answer), f"{what}, and another score when asked again")
        must(score == _score(tasks, stored, answer), f"{what}, and another score for the task from JSON")


def _score(tasks: TaskSet, task: Task, answer: Any) -> Any:
    found = tasks.score(task, answer)

    async def wait() -> Any:
        return await found

    return asyncio.run(wait()) if inspect.isawaitable(found) else found


def _lines(tasks: TaskSet, split: Split, count: int, seed: int) -> list[str]:
    return [_line(task) for task in tasks.generate(split, count, seed)]


def _line(task: Task) -> str:
    try:
        return json.dumps(dataclasses.asdict(task))
    except (TypeError, ValueError) as error:
        raise MarlError(f"task '{task.id}' cannot be written as JSON: {error}") from error


def _identity(task: Task) -> str:
    return task.id


def _content(task: Task) -> str:
    return json.dumps([task.prompt, task.data])
