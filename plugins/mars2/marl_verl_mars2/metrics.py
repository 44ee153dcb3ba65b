"""Metrics of a search tree: diversity of its candidates (formulas in `diversity`), and refinement across agents."""

from collections import Counter
from collections.abc import Mapping

from marl_verl import Turn
from marl_verl.algo.algorithms import Metric
from marl_verl.algo.sampling import Sample
from marl_verl_mars2 import diversity


class Diversity(Metric):
    """Diversity of a task's candidates.

    diversity/semantic          mean pairwise distance between their texts, 0 to 1
    diversity/algorithms        number of distinct algorithms
    diversity/algorithms_share  the same divided by the number of candidates
    diversity/style             style diversity of the agents, 0 to 1
    """

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        texts = [turn.action.text for turn in sample.turns]
        if not texts:
            return {}
        openings: dict[str, Counter[str]] = {}
        for turn in sample.turns:
            openings.setdefault(turn.agent, Counter()).update(diversity.openings(turn.action.text))
        count = diversity.algorithms(texts)
        values = {
            "diversity/semantic": diversity.semantic(texts),
            "diversity/algorithms": float(count),
            "diversity/algorithms_share": count / len(texts),
            "diversity/style": diversity.style([*openings.values()]),
        }
        return {name: value for name, value in values.items() if value is not None}


class Refinement(Metric):
    """Refinements of own and other agents' attempts in a task's tree, and their gain.

    refinement/share      share of the nodes that refine another node
    refinement/cross      share of the refinements that refine another agent's attempt
    refinement/depth      mean depth of a node, 1 for a first attempt
    refinement/gain_own   mean increase of component `team` when an agent refines its own attempt
    refinement/gain_cross the same when it refines another agent's attempt
    """

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        turns = sample.turns
        by_node = {turn.node: turn for turn in turns if turn.node is not None}
        if not by_node:
            return {}
        depth = {node: _depth(turn, by_node) for node, turn in by_node.items()}
        pairs = [(by_node[turn.parent], turn) for turn in turns if turn.parent is not None]
        own = [_gain(*pair) for pair in pairs if pair[0].agent == pair[1].agent]
        cross = [_gain(*pair) for pair in pairs if pair[0].agent != pair[1].agent]
        values = {"refinement/share": len(pairs) / len(turns), "refinement/depth": sum(depth.values()) / len(depth)}
        if pairs:
            values["refinement/cross"] = len(cross) / len(pairs)
        gains = {"refinement/gain_own": own, "refinement/gain_cross": cross}
        return values | {name: sum(gain) / len(gain) for name, gain in gains.items() if gain}


def _depth(turn: Turn, by_node: Mapping[str, Turn]) -> int:
    return 1 if turn.parent is None else 1 + _depth(by_node[turn.parent], by_node)


def _gain(parent: Turn, child: Turn) -> float:
    return child.rewards["team"] - parent.rewards["team"]
