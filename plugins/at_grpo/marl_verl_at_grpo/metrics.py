"""What AT-GRPO reports besides: how long its episodes are, and what choosing the best candidate gains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_verl.algorithms import Metric

if TYPE_CHECKING:
    from marl_verl.sampling import Sample


@dataclass(frozen=True)
class Turns(Metric):
    """`team/turns`: turns of an episode, the mean over a task's episodes. The paper sees them fall over training."""

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """A turn is one round of the team: the most acts that any of its agents had."""
        counts = [max(turn.turn for turn in episode.turns) + 1 for episode in sample.episodes if episode.turns]
        return {"team/turns": sum(counts) / len(counts)} if counts else {}


@dataclass(frozen=True)
class Chosen(Metric):
    """`tree/gain/AGENT`: best minus mean reward of an act's candidates, the mean over the acts of an agent.

    Zero where all candidates are alike: then the tree chooses nothing, and the act teaches nothing. Only where turns
    have a node. The reward is the sum of the components.
    """

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """Candidates are the turns of one agent, turn and slot under one parent."""
        acts: dict[tuple[str | None, str, str], list[float]] = defaultdict(list)
        for turn in sample.turns:
            if turn.node is not None:
                acts[turn.parent, turn.agent, turn.slot].append(sum(turn.rewards.values()))
        gains: dict[str, list[float]] = defaultdict(list)
        for (_, agent, _), rewards in acts.items():
            gains[agent].append(max(rewards) - sum(rewards) / len(rewards))
        return {f"tree/gain/{agent}": sum(found) / len(found) for agent, found in sorted(gains.items())}
