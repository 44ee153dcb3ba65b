"""What a task set says of an answer: a finite number, and whether the task is solved. In training as on replay."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from marl_verl.episode import perform
from marl_verl.errors import MarlError
from marl_verl.tasks.base import Task, TaskSet


async def number(fn: Callable[..., Any], arguments: tuple[Any, ...], what: str, seconds: float | None = None) -> float:
    """A finite number that somebody's function gives.

    Args:
        what: it is, to begin the error with.
        seconds: time limit, see `perform`.

    Raises:
        MarlError: it gives something else.
    """
    found = await perform(fn, arguments, seconds)
    name = getattr(fn, "__qualname__", fn)
    try:
        value = float(found)
    except (TypeError, ValueError) as error:
        raise MarlError(f"{what} must be a number, {name} gave {found!r:.80}") from error
    if not math.isfinite(value):
        raise MarlError(f"{what} must be finite, {name} gave {value}")
    return value


async def score(tasks: TaskSet, task: Task, answer: Any, seconds: float | None = None) -> float:
    """The task's score of an answer."""
    return await number(tasks.score, (task, answer), "the score", seconds)


async def judged(tasks: TaskSet, task: Task, answer: Any, seconds: float | None = None) -> tuple[float, bool]:
    """(score, success) of an answer. A task set without a `success` of its own is not made to score twice."""
    value = await score(tasks, task, answer, seconds)
    if type(tasks).success is TaskSet.success:
        return value, value >= 1.0  # what it would say
    return value, bool(await perform(tasks.success, (task, answer), seconds))
