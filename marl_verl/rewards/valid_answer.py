"""Role reward `valid-answer`: did the agent say something, and end it by itself?"""

from __future__ import annotations

from marl_verl.episode import Episode, Turn
from marl_verl.tasks.base import Task


def valid_answer(task: Task, turn: Turn, episode: Episode) -> float:
    """r = 1 if the action has text and was not cut off at the length limit, else 0."""
    return float(bool(turn.action.text.strip()) and turn.action.stop_reason != "length")
