"""A reward mix: one reward of a row's components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_verl.advantage import FloatArray, RewardMix, RowTable


@dataclass(frozen=True)
class TeamAndTurn(RewardMix):
    """r = team + w_turn * (role + credit): what the team earned, and what the turn itself did for it.

    Attributes:
        w_turn: weight of the turn's own.
    """

    name: ClassVar[str] = "my-method-mix"
    w_turn: float = 0.5

    def compute(self, table: RowTable) -> FloatArray:
        """Reward per row, [n]."""
        return table.component("team") + self.w_turn * (table.component("role") + table.component("credit"))
