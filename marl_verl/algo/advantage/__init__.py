"""Advantage estimation: pure functions from the row table and its rewards to one advantage per row, in NumPy."""

from marl_verl.algo.advantage.columns import FloatArray, IntArray, combine, group_mean
from marl_verl.algo.advantage.compare import Baseline, LeaveOneOut, Max, Mean, NoBaseline, Population, Scale
from marl_verl.algo.advantage.compare import Unbiased as Unbiased
from marl_verl.algo.advantage.estimator import (
    Advantage,
    AdvantageResult,
    Estimator,
    GroupEstimator,
    Memory,
    Overlong,
    PerRole,
    Rows,
)
from marl_verl.algo.advantage.returns import Discounted, Immediate, Returns
from marl_verl.algo.advantage.rows import AGENT, SIBLINGS, TASK, TURN, Group, RowTable, group_ids

__all__ = ["Advantage", "AdvantageResult", "Estimator", "GroupEstimator", "Overlong", "PerRole", "RowTable"]
__all__ += ["Baseline", "LeaveOneOut", "Max", "Mean", "NoBaseline", "Population", "Scale"]
__all__ += ["Discounted", "Immediate", "Returns"]
__all__ += ["AGENT", "SIBLINGS", "TASK", "TURN", "Group", "group_ids"]
__all__ += ["FloatArray", "IntArray", "Memory", "Rows", "combine", "group_mean"]
