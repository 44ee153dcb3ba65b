"""AT-GRPO (arXiv 2510.11062): candidates for one act are compared, and the best is the next state."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from marl_verl.algo.advantage import TURN, Advantage, AdvantageResult, FloatArray, RowTable
from marl_verl.algo.algorithms import Algorithm, Metric, PlainRows, in_groups, rewards_of
from marl_verl.algo.rewards import Mix, RewardMix
from marl_verl.algo.sampling import Sample


@dataclass(frozen=True)
class AlphaMix(RewardMix):
    """r = alpha * team + role; with alpha None, r = sum of the components.

    Source: AT-GRPO, arXiv 2510.11062: mixed by alpha. None: for teams without role rewards.
    """

    name: ClassVar[str] = "alpha"
    alpha: float | None = None

    def compute(self, table: RowTable) -> FloatArray:
        return (Mix() if self.alpha is None else Mix(team=self.alpha, role=1.0)).compute(table)


@dataclass(frozen=True)
class FilteredAdvantage(Advantage):
    """A = (R - b) / (sigma + eps), as `advantage`, and A = 0 in the groups that are filtered out.

    Of an agent's n groups in a batch, the int(n * ratio) with the lowest mean return are filtered out, the first of
    equal ones; the mean of a group of one row counts as 0. So an advantage depends on other groups of the batch.

    Source: the public code of AT-GRPO (arXiv 2510.11062), which filters groups of one policy and removes their rows, so
    that fewer rows are updated; here the rows stay, with advantage 0, and an agent is compared with itself: the rewards
    of roles have different scales. Its configs for games have method "mean" and ratio 0.5.
    """

    name: ClassVar[str] = "filtered"
    filter_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.0

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        result = super().compute(table, reward)
        if not self.filter_ratio:
            return result
        out = np.zeros(len(table), dtype=np.bool_)
        for agent in np.unique(table.role.codes):
            groups = np.unique(result.group[table.role.codes == agent])
            returns = [result.ret[result.group == group] for group in groups]
            worth = np.array([values.mean() if len(values) > 1 else 0.0 for values in returns])
            lowest = groups[np.argsort(worth, kind="stable")[: int(len(groups) * self.filter_ratio)]]
            out |= np.isin(result.group, lowest) & (table.role.codes == agent)
        # with its own return as baseline, a row has advantage 0
        return replace(result, baseline=np.where(out, result.ret, result.baseline))


class Turns(Metric):
    """`team/turns`: mean number of turns over a task's episodes: the largest number of acts of any agent."""

    name: ClassVar[str] = "at-turns"

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        counts = [max(turn.turn for turn in episode.turns) + 1 for episode in sample.episodes if episode.turns]
        return {"team/turns": sum(counts) / len(counts)} if counts else {}


AT_GRPO = Algorithm(
    sampler="greedy-tree",
    rewards=AlphaMix(alpha=None),
    advantage=FilteredAdvantage(sample="row", group=TURN, singleton="zero"),
    loss="ppo-clip",
    metrics=(Turns(),),
)
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent; r = alpha * team + role.

Compared: the agent's candidates for one act, sampled from one shared state; the best leads to the state that the next
agent sees. Source: AT-GRPO, arXiv 2510.11062.
"""

AT_GRPO_SESSIONS = replace(AT_GRPO, sampler="independent")
"""A = (r - mean_g) / (std_g + 1e-6), g = rows of the same task, turn and agent.

Compared: the same agent's actions at the same turn of the task's other episodes. AT-GRPO's groups without its tree.
"""


def at_grpo(rows: PlainRows) -> list[float]:
    return in_groups(rewards_of(rows), rows, ["uid", "turn", "agent", "slot"])


REFERENCES = {"at-grpo": at_grpo, "at-grpo-sessions": at_grpo}
