"""Tasks drawn at random: as many different ones as are wanted, each in one split whatever the seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from marl_verl.errors import MarlError
from marl_verl.tasks.base import Split, Task

TRIES = 10_000
"""Draws in a row without a new task, after which there seem to be no more."""


def distinct(draw: Callable[[], Task | None], count: int, split: Split, name: str) -> list[Task]:
    """`count` different tasks, in the order drawn.

    Args:
        draw: one random task, or None where the draw is no task of this split.
        name: of the task set, to begin the error with.

    Raises:
        MarlError: the split seems not to have that many.
    """
    tasks: dict[str, Task] = {}
    misses = 0
    while len(tasks) < count:
        task = draw()
        misses += 1
        if task is not None and task.id not in tasks:
            tasks[task.id], misses = task, 0
        elif misses == TRIES:
            raise MarlError(f"{name}: found only {len(tasks)} of {count} different {split} tasks")
    return list(tasks.values())


def held_out(text: str, one_in: int) -> bool:
    """Whether what a text describes is in split "test": one in `one_in` is, by a hash that no seed changes."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % one_in == 0
