"""A return: what rewards are worth to a turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from marl_verl.advantage import FloatArray, Returns, RowTable


@dataclass(frozen=True)
class Sooner(Returns):
    """R_t = gamma^t r_t, with t the agent's n-th act, from 0: the same reward is worth less in a later round.

    Attributes:
        gamma: discount.
    """

    name: ClassVar[str] = "my-method-sooner"
    gamma: float = 0.9

    def compute(self, table: RowTable, reward: FloatArray) -> FloatArray:
        """Return per row, [n]."""
        return np.power(self.gamma, table.turn) * reward
