"""AT-GRPO: candidates for one act are compared, the best goes on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from marl_verl.advantage import TURN, Advantage, FloatArray, RowTable
from marl_verl.algorithms import Algorithm
from marl_verl.rewards import RewardMix, total, weighted


@dataclass(frozen=True)
class AlphaMix(RewardMix):
    """r = alpha * team + role; with alpha None, r = sum of the components.

    Source: AT-GRPO, arXiv 2510.11062: the team's reward and the agent's own, mixed by alpha.

    Attributes:
        alpha: the team reward's weight. None suits teams without role rewards.
    """

    name: ClassVar[str] = "alpha"
    alpha: float | None = None

    def compute(self, table: RowTable) -> FloatArray:
        """Reward per row, [n]. MarlError as in `total` and `weighted`."""
        return total(table) if self.alpha is None else weighted(table, {"team": self.alpha, "role": 1.0})


AT_GRPO = Algorithm(
    sampler="greedy-tree",
    rewards=AlphaMix(alpha=None),
    credit="none",
    advantage=Advantage(sample="row", group=TURN, singleton="zero"),
    loss="ppo-clip",
    metrics=("at-turns", "at-chosen"),
)
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent; r = alpha * team + role.

Compared: the candidates that the agent had for the act, sampled from one shared state; the best of them is the state
that the next agent sees. Source: AT-GRPO, arXiv 2510.11062. alpha None adds up the components instead, so that teams
without role rewards train too.
"""

AT_GRPO_SESSIONS = dataclasses.replace(AT_GRPO, sampler="independent")
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent.

Compared: what the same agent did at the same turn in the other episodes of the task. AT-GRPO's groups without its tree.
"""
