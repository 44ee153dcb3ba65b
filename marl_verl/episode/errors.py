"""Errors that end an episode, and its limits."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.errors import MarlError

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


@contextmanager
def all_awaited(label: str) -> Iterator[None]:
    """MarlError if a workflow does not await one of its effects: an agent would silently never act."""
    with warnings.catch_warnings(record=True, action="always", category=RuntimeWarning) as caught:
        yield
    for warning in caught:
        if str(warning.message).startswith("coroutine 'Effects."):  # only Python knows, and only warns
            raise MarlError(f"{label}: `await` is missing: {warning.message}")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def short(text: str, width: int = 120) -> str:
    """A text truncated to `width` characters."""
    return text if len(text) <= width else f"{text[: width - 3]}..."
