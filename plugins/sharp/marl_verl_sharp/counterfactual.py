"""Credit `counterfactual`: the team's score minus its score without one agent, or one act.

    Delta_m = R(tau) - R(tau with m masked)

R is the task's score of the team's answer; Delta is signed: below 0, the team would have scored higher without m. This
is leave-one-out: n replays for n players, and the Deltas need not add up to the score (two workers with the same result
have 0 each). Masking, and its modes: `marl_verl_sharp.masking`.
Source: SHARP, arXiv 2602.08335, from second-hand descriptions: no authors' code was found.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.algo.sampling import SamplingContext
from marl_verl.episode import Episode, Turn
from marl_verl_sharp.masking import MaskingCredit


@dataclass(frozen=True)
class Counterfactual(MaskingCredit):
    """Delta on every turn of a player, by a replay without it; all replays of an episode run concurrently.

    An agent that did not act has no turn and needs no replay.

    Attributes:
        unit: "agent": all acts of an agent are masked together, and all its turns get the same Delta. "act": each act
            is masked separately, and its turn gets its own Delta.
    """

    name: ClassVar[str] = "counterfactual"
    unit: Literal["agent", "act"] = "agent"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "repeated", self.unit == "agent")

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Set Delta on the turns. Returns the number of sampled tokens. AttemptFailed if a masked run has no score."""
        players = self.acting(context, episode)
        turns = [turn for turn in episode.turns if turn.agent in players]
        masked = list(dict.fromkeys(self._masked(turn) for turn in turns))
        values, tokens = await self.values(context, episode, [frozenset({one}) for one in masked])
        without = dict(zip(masked, values, strict=True))
        for turn in turns:
            turn.rewards[self.component] = episode.score - without[self._masked(turn)]
        return tokens

    def _masked(self, turn: Turn) -> str | tuple[str, str]:
        return turn.agent if self.unit == "agent" else turn.key
