"""`Metric`: numbers of a method's own, besides those that every run reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from marl_verl.advantage.result import Advantages
    from marl_verl.advantage.rows import RowTable
    from marl_verl.sampling import Sample


@dataclass(frozen=True)
class Metric:
    """Base of metrics: override one of the two methods, or both.

    An algorithm names its metrics (`Algorithm.metrics`); `marl.algorithm.options.metrics: [amplification]` asks for
    others. What is computed goes to metrics.jsonl under the names that the methods give.
    """

    def of_rows(self, table: RowTable, result: Advantages) -> Mapping[str, float]:
        """Numbers of a step, from all of its rows and their advantages; padding rows have `result.group` -1.

        Called in the driver's process, after the advantages of a step.
        """
        return {}

    def of_sample(self, sample: Sample) -> Mapping[str, float]:
        """Numbers of one task, from all that was sampled for it (texts too); a step reports their mean over its tasks.

        Called in the rollout worker's process. A task that leaves a name out is not counted in its mean.
        """
        return {}
