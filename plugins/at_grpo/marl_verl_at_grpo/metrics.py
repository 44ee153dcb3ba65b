"""Metrics of AT-GRPO: turns per episode, and the gain from choosing the best candidate."""

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from marl_verl.algo.algorithms import Metric

if TYPE_CHECKING:
    from marl_verl.algo.sampling import Sample


class Turns(Metric):
    """`team/turns`: mean number of turns over a task's episodes. In the paper it falls over training."""

    name: ClassVar[str] = "at-turns"

    def of_sample(self, sample: "Sample") -> Mapping[str, float]:
        """An episode's turns are the largest number of acts of any of its agents."""
        counts = [max(turn.turn for turn in episode.turns) + 1 for episode in sample.episodes if episode.turns]
        return {"team/turns": sum(counts) / len(counts)} if counts else {}


class Chosen(Metric):
    """`tree/gain/AGENT`: best minus mean reward of an act's candidates, averaged over the acts of an agent.

    Zero if all candidates have the same reward: then the act gives no learning signal. Only for turns with a node. The
    reward is the sum of the components.
    """

    name: ClassVar[str] = "at-chosen"

    def of_sample(self, sample: "Sample") -> Mapping[str, float]:
        """Candidates are the turns of one agent, turn and slot under one parent."""
        acts: dict[tuple[str | None, str, str], list[float]] = defaultdict(list)
        for turn in sample.turns:
            if turn.node is not None:
                acts[turn.parent, turn.agent, turn.slot].append(sum(turn.rewards.values()))
        gains: dict[str, list[float]] = defaultdict(list)
        for (_, agent, _), rewards in acts.items():
            gains[agent].append(max(rewards) - sum(rewards) / len(rewards))
        return {f"tree/gain/{agent}": sum(values) / len(values) for agent, values in sorted(gains.items())}
