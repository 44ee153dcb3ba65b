"""The format reward of MATPO, the multi-agent baseline of SHARP: R = 0.9 accuracy + 0.1 format."""

from __future__ import annotations

from marl_verl import Episode, Task, Turn
from marl_verl.tasks import quick


@quick
def sharp_format(task: Task, turn: Turn, episode: Episode) -> float:
    """Role reward `sharp-format`, 0 or 1: 1 if the workflow could use the action, 0 if it marked it as invalid."""
    return float(turn.invalid is None)
