"""`Credit`: how much of what a team earned one agent's turn earned, as one more reward component of its row.

It is computed from the rows of a batch (`TableCredit`), or by replaying episodes with something changed
(`ReplayCredit`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marl_verl.advantage.columns import FloatArray
from marl_verl.advantage.part import Part
from marl_verl.advantage.rows import RowTable
from marl_verl.episode import Episode
from marl_verl.errors import MarlError
from marl_verl.sampling import Failure, Sample, SamplingContext, attempt, gather_all

TAKEN = ("team", "role", "tool")
"""Components that the rollouts fill in: a credit of that name would replace them."""


class Credit(Part):
    """Base of `TableCredit`, which looks at the rows of a batch, and `ReplayCredit`, which replays episodes."""

    kind: ClassVar[str] = "credits"

    def incompatibility(self, branches: bool) -> str | None:
        """Why it does not go with sessions (`branches` false), or with trees; None if it does."""
        return None

    def consumed(self) -> tuple[str, ...]:
        """Components that the credit takes the place of: the sum of all components leaves them out."""
        return ()

    def apply(self, table: RowTable) -> RowTable:
        """The table with what the credit adds to it; nothing where the rows have it already."""
        return table


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
        return table.with_component(self.component, self.compute(table)).setting_aside(self.consumed())


@dataclass(frozen=True)
class NoCredit(Credit):
    """Every turn keeps the reward components it has: nothing is replayed, and no component `credit` is added."""

    name: ClassVar[str] = "none"


@dataclass(frozen=True)
class ReplayCredit(Credit):
    """Adds a reward component to turns of a finished episode, where it is sampled. A frozen dataclass.

    Attributes:
        component: what it adds.
    """

    component: str = "credit"

    @property
    def repeated(self) -> bool:
        """Whether what an agent earned stands on each of its turns: returns that add turns up would count it often."""
        return True

    def __post_init__(self) -> None:
        if not self.component or self.component in TAKEN:
            raise MarlError(f"'component' must be a name of its own, not one of {', '.join(TAKEN)}: '{self.component}'")

    def check(self, agents: Sequence[str]) -> None:
        """MarlError where an option does not fit the team."""

    def players(self, agents: Sequence[str]) -> tuple[str, ...]:
        """The agents whose turns get the component."""
        return tuple(agents)

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Fill in the component on the turns of the players, and return how many tokens were sampled for it.

        Raises:
            Failed, WorkflowError: a replay came to nothing: the episode cannot be credited.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `async def assign(self, context, episode)`")


async def with_credit(credit: ReplayCredit, context: SamplingContext, sample: Sample) -> None:
    """Credit every episode of a sample, all at once; one that cannot be credited becomes a failure."""
    work = (attempt(context, episode.session, credit.assign(context, episode)) for episode in sample.episodes)
    credited = []
    for episode, found in zip(sample.episodes, await gather_all(work), strict=True):
        if isinstance(found, Failure):
            sample.failures.append(found)
        else:
            sample.add_tokens("credit", found)
            credited.append(episode)
    sample.episodes = credited
