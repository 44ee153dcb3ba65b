"""Credit scheme `counterfactual`: what the team would have lost without one agent, or one act.

    Delta_m = R(tau) - R(tau with m masked)

R is the task's score of the team's answer; Delta is signed: below zero, the team would have done better without m. This
is leave-one-out: n replays for n players, and Deltas need not add up to what the team earned (two workers who found the
same have 0 each). Masking, and its modes: `marl_verl_sharp.masking`.
Source: SHARP, arXiv 2602.08335, second hand: no authors' code was found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from marl_verl.episode import Episode, Turn
from marl_verl.errors import unknown
from marl_verl.sampling import SamplingContext
from marl_verl_sharp.masking import MaskingCredit


@dataclass(frozen=True)
class Counterfactual(MaskingCredit):
    """Delta on every turn of a player, each by a replay without it; all replays of an episode go at once.

    An agent that did not act has no turn, and costs no replay.

    Attributes:
        unit: "agent": all acts of an agent are masked together, and all its turns get the same Delta. "act": each act
            is masked by itself, and its turn gets its own.
    """

    name: ClassVar[str] = "counterfactual"
    unit: Literal["agent", "act"] = "agent"

    @property
    def repeated(self) -> bool:
        """With unit "agent"."""
        return self.unit == "agent"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unit not in ("agent", "act"):
            raise unknown("unit", self.unit, ("agent", "act"))

    async def assign(self, context: SamplingContext, episode: Episode) -> int:
        """Returns the tokens sampled in the masked runs. Raises Failed if one of them came to no score."""
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
