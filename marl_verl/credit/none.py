"""Credit scheme `none`: nobody's share of the reward is singled out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_verl.advantage.rows import RowTable
from marl_verl.credit.table import TableCredit


@dataclass(frozen=True)
class NoCredit(TableCredit):
    """Every turn keeps the reward components it has: nothing is replayed, and no component `credit` is added."""

    name: ClassVar[str] = "none"

    def apply(self, table: RowTable) -> RowTable:
        return table
