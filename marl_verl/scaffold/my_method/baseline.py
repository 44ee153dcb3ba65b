"""A baseline: what a row is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from marl_verl.advantage import Baseline, FloatArray, IntArray


@dataclass(frozen=True)
class Median(Baseline):
    """b = median of the group's returns: one lucky session does not move it."""

    name: ClassVar[str] = "my-method-median"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One baseline per value [S]; `group` [S] are ids without gaps."""
        ordered = value[np.lexsort((value, group))]
        count = np.bincount(group)
        first = np.cumsum(count) - count
        return ((ordered[first + (count - 1) // 2] + ordered[first + count // 2]) / 2)[group]
