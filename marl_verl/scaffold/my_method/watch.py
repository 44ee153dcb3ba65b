"""The two observers: they see what happens, and change nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from marl_verl import Episode, hookimpl

log = logging.getLogger(__name__)


@hookimpl
def marl_episode_finished(episode: Episode) -> None:
    """In the rollout worker: say what the workflow could not use."""
    for turn in episode.turns:
        if turn.invalid is not None:
            log.info("task %s, %s: %r, %s", episode.task.id, turn.agent, turn.action.text, turn.invalid)


@hookimpl
def marl_step_finished(step: int, metrics: Mapping[str, Any]) -> None:
    """In the driver: say how the step went."""
    log.info("step %d: success %.3f", step, metrics["train/success"])
