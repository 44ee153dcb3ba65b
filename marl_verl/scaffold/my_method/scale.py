"""A scale: the unit that a group's advantages are measured in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from marl_verl.advantage import FloatArray, IntArray, Scale, group_mean


@dataclass(frozen=True)
class Distance(Scale):
    """sigma = mean |R - mean|, the mean distance of the group's returns from their mean."""

    name: ClassVar[str] = "my-method-distance"

    def compute(self, value: FloatArray, group: IntArray) -> FloatArray:
        """One spread per group, [G]."""
        return group_mean(np.abs(value - group_mean(value, group)[group]), group)
