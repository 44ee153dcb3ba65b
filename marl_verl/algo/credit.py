"""Credit: the contribution of one agent's turn to the team's reward, as an additional reward component of its row.

A `TableCredit` is computed from the rows of a batch. A `ReplayCredit` replays episodes in the rollout worker.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marl_verl.algo.advantage.columns import FloatArray
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.sampling import Failure, Sample, SamplingContext, attempt, gather_all
from marl_verl.algo.sampling.sampler import ColumnFunction
from marl_verl.episode import Episode
from marl_verl.episode.communication import AMOUNTS
from marl_verl.errors import MarlError, check_returned, noted
from marl_verl.options import Part

__all__ = ["ReplayCredit", "TableCredit"]

TAKEN = ("team", "role", *AMOUNTS)  # components that are set while sampling; a credit has none of these names


class Credit(Part):
    """Base of `TableCredit` and `ReplayCredit`."""

    kind: ClassVar[str] = "credit"
    columns: ClassVar[tuple[ColumnFunction, ...]] = ()  # functions of the columns that it reads
    repeated: ClassVar[bool] = False  # every turn of an agent has its whole credit: sums over turns would repeat it
    no_tree: ClassVar[str | None] = None  # why rows must not be of trees; None: they may be
    needs_tree: ClassVar[str | None] = None  # why rows must be of trees; None: sessions will do

    def incompatibility(self, branches: bool) -> str | None:
        """Why the credit is incompatible with rows of trees (`branches`), or of sessions; None if it is compatible."""
        return self.no_tree if branches else self.needs_tree

    def consumed(self) -> tuple[str, ...]:
        """Components that the credit replaces; they are excluded from the sum of all components."""
        return ()


class TableCredit(Credit):
    """Adds reward component `component` to every row before components are mixed."""

    component: ClassVar[str] = "credit"

    @abstractmethod
    def compute(self, table: RowTable) -> FloatArray:
        """The credit of each row, [n]. `table` is sorted by key."""


@dataclass(frozen=True)
class ReplayCredit(Credit):
    """Adds reward component `component` to turns of a finished episode, in the rollout worker."""

    repeated: ClassVar[bool] = True
    component: str = "credit"

    def __post_init__(self) -> None:
        if self.component in ("", *TAKEN):
            raise MarlError(f"'component' must be a name other than {', '.join(TAKEN)}, got '{self.component}'")

    def check(self, agents: Sequence[str]) -> None:
        """Raise MarlError if an option does not fit the team."""

    def players(self, agents: Sequence[str]) -> tuple[str, ...]:
        """The agents whose turns get the component."""
        return tuple(agents)

    @abstractmethod
    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Set the component on the turns of the players, and return the number of tokens sampled for it. AttemptFailed
        or WorkflowError: a replay failed, so that the episode cannot be credited."""


async def assigned(credit: ReplayCredit, context: SamplingContext, episode: Episode) -> int:
    """`ReplayCredit.assign`. MarlError if it returned no number of tokens, or credited no turn of the players."""
    before, label = [{*turn.rewards} for turn in episode.turns], f"credit '{credit.name}'"
    with noted(label):
        tokens = await credit.assign(context, episode)
    check_returned(tokens, int, f"`assign` of {label} must return its number of tokens")
    players = credit.players(context.agents)
    credited = [credit.component in turn.rewards for turn in episode.turns if turn.role in players]
    if credited and not any(credited):
        new = [{*turn.rewards} - old for turn, old in zip(episode.turns, before, strict=True)]
        names = ", ".join(sorted(set().union(*new))) or "none"
        raise MarlError(f"`assign` of {label} must set component '{credit.component}' of turns; it set {names}")
    return tokens


async def with_credit(credit: ReplayCredit, context: SamplingContext, sample: Sample) -> None:
    """Credit all episodes of a sample concurrently; an episode that cannot be credited becomes a failure."""
    work = (attempt(context, episode.session, assigned(credit, context, episode)) for episode in sample.episodes)
    credited = []
    for episode, outcome in zip(sample.episodes, await gather_all(work), strict=True):
        if isinstance(outcome, Failure):
            sample.failures.append(outcome)
        else:
            sample.add_tokens("credit", outcome)
            credited.append(episode)
    sample.episodes = credited
