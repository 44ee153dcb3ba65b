"""Errors that end an episode, and its limits."""

import traceback
from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.errors import MarlError, format_error

Reason = Literal["workflow-error", "policy-error", "score-error", "timeout", "token-budget"]
"""Cause of a failed episode: the workflow, a policy request, the scoring of the answer, or a limit."""


@dataclass(frozen=True)
class Limits:
    """Limits of one episode; None means unlimited. Reaching a limit ends only that episode.

    Attributes:
        acts, calls: number of acts and of calls in one run; stops workflows that do not terminate.
        spawned: number of agents that one run creates by `team.spawn`.
        tokens: tokens sampled in one run over all agents, checked before each act.
        act_seconds: one act, from the request to its action.
        call_seconds: one `team.call`, and one scoring of an answer. A call that takes longer raises a CallError of kind
            "TimeoutError" in the workflow, which is recorded. With a limit, synchronous functions run in threads.
        episode_seconds: one episode including its scoring; in a tree, from one act to the next.
    """

    acts: int = 1000
    calls: int = 10_000
    spawned: int = 64
    tokens: int | None = None
    act_seconds: float | None = None
    call_seconds: float | None = None
    episode_seconds: float | None = None


class WorkflowError(MarlError):
    """A workflow failed. The message names workflow, task and the last effect; `__cause__` is the original error."""

    reason: ClassVar[Reason] = "workflow-error"  # its class, for counting


class TokenBudgetExceeded(WorkflowError):
    """An episode has reached its limit of sampled tokens."""

    reason = "token-budget"


class UnknownAgentError(WorkflowError):
    """A workflow requests an action of an agent that is not in the team."""


class ReplayMismatch(WorkflowError):
    """A workflow behaves differently on replay. The message names the effect and the difference."""


def with_line(error: BaseException) -> str:
    """The message of an exception, with the line that raised it unless it is a MarlError."""
    frames = [] if isinstance(error, MarlError) else traceback.extract_tb(error.__traceback__)
    return format_error(error) + (at_line(frames[-1]) if frames else "")


def at_line(frame: traceback.FrameSummary) -> str:
    """The location of a frame, e.g. " (my_team.py, line 12)"."""
    return f" ({frame.filename.rpartition('/')[2]}, line {frame.lineno})"


def short(text: str, width: int = 120) -> str:
    """A text truncated to `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
