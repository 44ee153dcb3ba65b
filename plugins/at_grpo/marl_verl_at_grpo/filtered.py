"""AT-GRPO's filter of groups: those with the lowest mean of the rewards are not trained on."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Interval

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable


@dataclass(frozen=True)
class FilteredAdvantage(Advantage):
    """A = (R - b) / (sigma + eps), as `advantage`, and A = 0 in the groups that are filtered out.

    Of an agent's n groups in a batch, the int(n * ratio) with the lowest mean return are filtered out, the first of
    equal ones; the mean of a group of one row counts as 0. So an advantage depends on other groups of the batch.

    Source: the public code of AT-GRPO (arXiv 2510.11062), which filters groups of one policy and removes their rows, so
    that fewer rows are updated; here the rows stay, with advantage 0, and an agent is compared with itself: the rewards
    of roles have different scales. Its configs for games have method "mean" and ratio 0.5.

    Attributes:
        filter_ratio: share of an agent's groups that are filtered out, 0 to below 1.
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
        return dataclasses.replace(result, baseline=np.where(out, result.ret, result.baseline))
