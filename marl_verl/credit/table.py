"""`TableCredit`: a credit that the rows of a batch suffice for; no episode is replayed."""

from __future__ import annotations

from typing import ClassVar

from marl_verl.advantage.rows import FloatArray, RowTable
from marl_verl.credit.base import Credit


class TableCredit(Credit):
    """Adds a reward component to every row, before components are mixed. A frozen dataclass.

    Attributes:
        component: what it adds.
    """

    component: ClassVar[str] = "credit"

    def compute(self, table: RowTable) -> FloatArray:
        """The credit of each row, [n]. `table` has no padding and is sorted by key."""
        raise NotImplementedError

    def apply(self, table: RowTable) -> RowTable:
        """The table with the credit. MarlError if rows have a component of that name already."""
        return table.with_component(self.component, self.compute(table)).setting_aside(self.reads())
