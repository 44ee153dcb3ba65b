"""AT-GRPO's filter of groups: those with the lowest mean, or spread, of the rewards are not trained on."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Interval

from marl_verl.algo.advantage import Advantage, AdvantageResult, FloatArray, RowTable


@dataclass(frozen=True)
class FilteredAdvantage(Advantage):
    """A = (R - b) / (sigma + eps), as `advantage`, and A = 0 in the groups that are filtered out.

    Of an agent's n groups in a batch, int(n * ratio) are filtered out: "mean" takes those with the lowest mean return,
    "std" those whose return has the lowest variance relative to its squared range; the first of equal ones. So an
    advantage depends on other groups of the batch.

    Source: the public code of AT-GRPO (arXiv 2510.11062), which filters groups of one policy and removes their rows, so
    that fewer rows are updated; here the rows stay, with advantage 0, and an agent is compared with itself: the rewards
    of roles have different scales. Its configs for games have method "mean" and ratio 0.5.

    Attributes:
        filter_method: "none", "mean" or "std".
        filter_ratio: share of an agent's groups that are filtered out, 0 to below 1.
    """

    name: ClassVar[str] = "filtered"
    filter_method: Literal["none", "mean", "std"] = "none"
    filter_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.0

    def compute(self, table: RowTable, reward: FloatArray) -> AdvantageResult:
        result = super().compute(table, reward)
        if self.filter_method == "none":
            return result
        out = np.zeros(len(table), dtype=np.bool_)
        for agent in np.unique(table.role.codes):
            groups = np.unique(result.group[table.role.codes == agent])
            worth = np.array([self._worth(result.ret[result.group == group]) for group in groups])
            lowest = groups[np.argsort(worth, kind="stable")[: int(len(groups) * self.filter_ratio)]]
            out |= np.isin(result.group, lowest) & (table.role.codes == agent)
        # with its own return as baseline, a row has advantage 0
        baseline = np.where(out, result.ret, result.baseline)
        return dataclasses.replace(result, baseline=baseline)

    def _worth(self, values: FloatArray) -> float:
        if self.filter_method == "mean":
            return float(values.mean()) if len(values) > 1 else 0.0
        spread = float(np.ptp(values))
        return float(values.var()) / spread**2 if spread else 0.0
