"""Errors of workflows, and how they are worded."""

from __future__ import annotations

import traceback
from typing import ClassVar

from marl_verl.episode.limits import Reason
from marl_verl.errors import MarlError, told


class WorkflowError(MarlError):
    """A workflow failed: the message names workflow, task and the last effect; `__cause__` is what it raised."""

    reason: ClassVar[Reason] = "workflow-error"
    """Its class, for counting."""


class OverBudget(WorkflowError):
    """An episode has sampled as many tokens as it may."""

    reason = "token-budget"


class Stuck(WorkflowError):
    """A workflow runs without an effect and does not end: it would block every other run of the process."""

    reason = "timeout"


class UnknownAgent(WorkflowError):
    """A workflow acts for an agent that the team does not have."""


class ReplayMismatch(WorkflowError):
    """A workflow does something else on replay: the message names the effect and what changed."""


def with_line(error: BaseException) -> str:
    """An exception in words, with the line that raised it unless it is a user's mistake."""
    if isinstance(error, MarlError):
        return told(error)
    frames = traceback.extract_tb(error.__traceback__)
    return told(error) + (at_line(frames[-1]) if frames else "")


def at_line(frame: traceback.FrameSummary) -> str:
    """Where a frame is, e.g. " (my_team.py, line 12)"."""
    return f" ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"


def short(text: str, width: int = 120) -> str:
    """A text, cut where it is longer than `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
