"""ReMax: compares each episode with a greedy one of the same task."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marl_verl.algo.advantage.columns import FloatArray
from marl_verl.algo.advantage.estimator import Estimator, Rows
from marl_verl.algo.advantage.groups import TASK, group_ids
from marl_verl.algo.advantage.result import AdvantageResult
from marl_verl.algo.advantage.rows import RowTable
from marl_verl.algo.algorithms import Algorithm
from marl_verl.algo.algorithms.reference import PlainRows, rewards_of


@dataclass(frozen=True)
class Greedy(Estimator):
    """A = r - r_greedy: the reward of a row minus that of its agent in the greedy episode of the task.

    Source: ReMax, arXiv 2310.10505, verl's `compute_remax_outcome_advantage`.
    """

    name: ClassVar[str] = "greedy"

    def incompatibility(self, rows: Rows) -> str | None:
        return None if rows.greedy else "it needs a greedy episode of each task: use sampler 'greedy-baseline'"

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        baseline, rows = table.column("greedy"), np.arange(len(table))
        scale, group = np.ones(len(table)), group_ids(table, TASK)
        return AdvantageResult(reward, reward, baseline, scale, group, rows, TASK)


REMAX = Algorithm(sampler="greedy-baseline", advantage=Greedy())
"""A = r - r_greedy. One sampled episode per task is enough. See `Greedy`."""


def remax(rows: PlainRows) -> list[float]:
    return [reward - row["columns"]["greedy"] for row, reward in zip(rows, rewards_of(rows), strict=True)]


REFERENCES = {"remax": remax}
