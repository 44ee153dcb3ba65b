"""Metric `joint-turns`: mean reward and return per turn, which count from 0, as in the row table.

magrpo/turn_T/return     mean return R over the rows of turn T
magrpo/turn_T/reward     mean reward r of its joint actions: R - r is from later turns
"""

from collections.abc import Mapping

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, RowTable
from marl_verl.algo.algorithms import Metric


class JointTurns(Metric):
    """Rewards and returns, turn by turn."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        counted = (result.group >= 0) & ~table.untrained
        values: dict[str, float] = {}
        for turn in np.unique(table.turn[counted]):
            rows = counted & (table.turn == turn)
            values[f"magrpo/turn_{turn}/return"] = float(result.ret[rows].mean())
            values[f"magrpo/turn_{turn}/reward"] = float(result.reward[rows].mean())
        return values
