"""Difference rewards: what the team would have got without this turn's action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.credit.table import TableCredit


@dataclass(frozen=True)
class DifferenceRewards(TableCredit):
    """D_i = G(z) - G(z with i's default action). Source: Wolpert and Tumer, 2002.

    G(z) is one reward component of the row, and G with the default action another, which a task, a role reward or a
    replay has to supply. `credit` takes the place of both in the sum of components.

    Attributes:
        outcome: component with G(z).
        default: component with G(z with i's default action).
    """

    name: ClassVar[str] = "difference"
    outcome: str = "team"
    default: str = "default"

    def reads(self) -> tuple[str, ...]:
        return (self.outcome, self.default)

    def compute(self, table: RowTable) -> FloatArray:
        """MarlError naming the component (nearest offered) or the row that lacks it."""
        return table.component(self.outcome) - table.component(self.default)
