"""Limits: how much one episode may take before it is ended, with the reason told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marl_verl.errors import MarlError

Reason = Literal["workflow-error", "policy-error", "score-error", "timeout", "token-budget"]
"""What ended an episode: the workflow, the policy asked for an action, the scoring of the answer, or a limit."""


@dataclass(frozen=True)
class Limits:
    """What one episode may take; None is no limit. Reaching one ends that episode and no other.

    Attributes:
        acts: acts in one run: where a workflow that never ends is stopped.
        tokens: tokens sampled in one run, over all agents; looked at when an act is reached.
        act_seconds: one act, from the request to its action.
        call_seconds: one `team.call`, and one scoring of an answer. A call that takes longer raises TimeoutError in the
            workflow, which is recorded. With a limit, plain functions run in a thread of their own.
        episode_seconds: one episode, its score included; in a tree, from one act to the next.
    """

    acts: int = 1000
    tokens: int | None = None
    act_seconds: float | None = None
    call_seconds: float | None = None
    episode_seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("acts", "tokens", "act_seconds", "call_seconds", "episode_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise MarlError(f"'{name}' must be above 0, got {value}")
