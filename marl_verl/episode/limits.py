"""Limits: how much one episode may take before it is ended, with the reason told."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from marl_verl.errors import MarlError

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
