"""A role reward: what an agent's turn earns by itself, in component `role`."""

from __future__ import annotations

from marl_verl import Episode, Task, Turn


def digits_right(task: Task, turn: Turn, episode: Episode) -> float:
    """The share of the number's digits that the turn has in their places."""
    digits = task.data["digits"]
    said = turn.action.text.split()
    return sum(a == b for a, b in zip(said, digits, strict=False)) / max(len(digits), len(said))
