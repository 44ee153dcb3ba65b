"""Errors that end an episode, and its limits."""

import traceback
from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.errors import MarlError, format_error

Reason = Literal["workflow-error", "policy-error", "score-error", "timeout", "token-budget"]
"""Cause of a failed episode: the workflow, a policy request, the scoring of the answer, or a limit."""


@dataclass(frozen=True)
class Limits:
    """Limits of one episode; None means unlimited. Reaching a limit ends only that episode."""

    acts: int = 1000  # this and `calls` stop workflows that do not terminate
    calls: int = 10_000
    spawned: int = 64  # agents that `team.spawn` creates
    tokens: int | None = None  # sampled by all agents, checked before each act
    act_seconds: float | None = None  # from the request to its action
    call_seconds: float | None = None  # of a `team.call`: then a CallError "TimeoutError"; and of scoring an answer
    episode_seconds: float | None = None  # with its scoring; in a tree, from one act to the next


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
    frames = [] if isinstance(error, MarlError) else traceback.extract_tb(error.__traceback__)[-1:]
    lines = [f" ({frame.filename.rpartition('/')[2]}, line {frame.lineno})" for frame in frames]
    return format_error(error) + "".join(lines)


def short(text: str, width: int = 120) -> str:
    """A text truncated to `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
