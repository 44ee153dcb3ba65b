"""What ends an episode: the errors of its workflow, and limits."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from marl_verl.errors import MarlError, format_error

Reason = Literal["workflow-error", "policy-error", "score-error", "timeout", "token-budget"]
"""What ended an episode: the workflow, the policy asked for an action, the scoring of the answer, or a limit."""


@dataclass(frozen=True)
class Limits:
    """What one episode may take; None is no limit. Reaching one ends that episode and no other.

    Attributes:
        acts, calls: acts, and calls, in one run: where a workflow that never ends is stopped.
        tokens: tokens sampled in one run, over all agents; looked at when an act is reached.
        act_seconds: one act, from the request to its action.
        call_seconds: one `team.call`, and one scoring of an answer. A call that takes longer raises TimeoutError in the
            workflow, which is recorded. With a limit, plain functions run in a thread of their own.
        episode_seconds: one episode, its score included; in a tree, from one act to the next.
        step_seconds: the workflow's own code between two effects, where it does not give way to others (a loop without
            an end holds up every run of the process); see `watchdog`.
    """

    acts: int = 1000
    calls: int = 10_000
    tokens: int | None = None
    act_seconds: float | None = None
    call_seconds: float | None = None
    episode_seconds: float | None = None
    step_seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise MarlError(f"'{field.name}' must be above 0, got {value}")


class WorkflowError(MarlError):
    """A workflow failed: the message names workflow, task and the last effect; `__cause__` is what it raised."""

    reason: ClassVar[Reason] = "workflow-error"  # its class, for counting


class TokenBudgetExceeded(WorkflowError):
    """An episode has sampled as many tokens as it may."""

    reason = "token-budget"


class StepTimeout(WorkflowError):
    """A workflow runs without an effect and does not end: it would block every other run of the process."""

    reason = "timeout"


class UnknownAgentError(WorkflowError):
    """A workflow acts for an agent that the team does not have."""


class ReplayMismatch(WorkflowError):
    """A workflow does something else on replay: the message names the effect and what changed."""


def with_line(error: BaseException) -> str:
    """An exception in words, with the line that raised it unless it is a user's mistake."""
    frames = [] if isinstance(error, MarlError) else traceback.extract_tb(error.__traceback__)
    return format_error(error) + (at_line(frames[-1]) if frames else "")


def at_line(frame: traceback.FrameSummary) -> str:
    """Where a frame is, e.g. " (my_team.py, line 12)"."""
    return f" ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"


def short(text: str, width: int = 120) -> str:
    """A text, cut where it is longer than `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
