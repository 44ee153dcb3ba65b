"""`ReplayCredit`: a credit found by replaying an episode with something of it changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_verl.credit.base import Credit
from marl_verl.errors import MarlError

if TYPE_CHECKING:
    from marl_verl.episode import Episode
    from marl_verl.sampling import Rollouts, Sample

TAKEN = ("team", "role", "tool")
"""Components that the rollouts fill in: a credit of that name would replace them."""


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

    async def assign(self, rollouts: Rollouts, episode: Episode) -> int:
        """Fill in the component on the turns of the players, and return how many tokens were sampled for it.

        Raises:
            Failed, WorkflowError: a replay came to nothing: the episode cannot be credited.
        """
        raise NotImplementedError(f"{type(self).__name__} has no `async def assign(self, rollouts, episode)`")


async def with_credit(credit: ReplayCredit, rollouts: Rollouts, sample: Sample) -> None:
    """Credit every episode of a sample, all at once; one that cannot be credited becomes a failure."""
    from marl_verl.sampling import Failure, attempt, together

    work = (attempt(rollouts, episode.session, credit.assign(rollouts, episode)) for episode in sample.episodes)
    credited = []
    for episode, found in zip(sample.episodes, await together(work), strict=True):
        if isinstance(found, Failure):
            sample.failures.append(found)
        else:
            sample.add_tokens("credit", found)
            credited.append(episode)
    sample.episodes = credited
