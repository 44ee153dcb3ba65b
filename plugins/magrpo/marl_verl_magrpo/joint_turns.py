"""Metric `joint-turns`: reward, return and spread of the returns among siblings, per turn.

    magrpo/turn_T/return     mean return R over the rows of turn T
    magrpo/turn_T/reward     mean reward r of its joint actions: R - r is from later turns
    magrpo/turn_T/spread     population std of the returns in a row's group, mean over the rows of turn T with
                             siblings: the size of the learning signal, 0 if all siblings have the same return
    magrpo/turn_T/groups     number of groups of two or more rows with turn T

Turns count from 0, as in the row table.
"""

from collections.abc import Mapping

import numpy as np

from marl_verl.algo.advantage import AdvantageResult, Population, RowTable, combine
from marl_verl.algo.algorithms import Metric


class JointTurns(Metric):
    """Rewards, returns and their spread among siblings, turn by turn."""

    def of_rows(self, table: RowTable, result: AdvantageResult) -> Mapping[str, float]:
        rows = np.flatnonzero((result.group >= 0) & ~table.untrained)
        turn, ret, reward = table.turn[rows], result.ret[rows], result.reward[rows]
        group = combine([result.group[rows]], len(rows))
        size = np.bincount(group)
        spread = Population().compute(ret, group)[group]
        values: dict[str, float] = {}
        for t in np.unique(turn):
            at = turn == t
            compared = at & (size[group] > 1)
            values[f"magrpo/turn_{t}/return"] = float(ret[at].mean())
            values[f"magrpo/turn_{t}/reward"] = float(reward[at].mean())
            values[f"magrpo/turn_{t}/groups"] = float(len(np.unique(group[compared])))
            if compared.any():
                values[f"magrpo/turn_{t}/spread"] = float(spread[compared].mean())
        return values
