"""A credit: what one turn earned, which the team's reward does not tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from marl_verl import Episode
from marl_verl.credit import ReplayCredit
from marl_verl.sampling import Rollouts, scored


@dataclass(frozen=True)
class StepForward(ReplayCredit):
    """credit_t = v_t - v_(t-1), where v_t is the score of turn t's words as the answer, and v_(-1) = 0.

    A writer that garbles a right call has -1, one that copies it 0. The credits of an episode add up to its score.
    It samples nothing. One that does runs the episode again with something of it changed.
    """

    name: ClassVar[str] = "my-method-step-forward"

    async def assign(self, rollouts: Rollouts, episode: Episode) -> int:
        """Fill in the component on every turn; 0 tokens were sampled for it."""
        before = 0.0
        for turn in episode.turns:
            value = await scored(rollouts, rollouts.score(turn.action.text))
            turn.rewards[self.component] = value - before
            before = value
        return 0
