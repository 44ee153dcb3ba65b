"""`Credit`: how much of what a team earned one agent's turn earned, as one more reward component of its row."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from marl_verl.advantage.part import Part

if TYPE_CHECKING:
    from marl_verl.advantage.rows import RowTable


class Credit(Part):
    """Base of `TableCredit`, which looks at the rows of a batch, and `ReplayCredit`, which replays episodes."""

    kind: ClassVar[str] = "credits"

    def misfit(self, branches: bool) -> str | None:
        """Why it does not go with sessions (`branches` false), or with trees; None if it does."""
        return None

    def reads(self) -> tuple[str, ...]:
        """Components that the credit takes the place of: the sum of all components leaves them out."""
        return ()

    def apply(self, table: RowTable) -> RowTable:
        """The table with what the credit adds to it; nothing where the rows have it already."""
        return table
