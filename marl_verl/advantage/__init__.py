"""From rewards to one advantage per row: small pure functions over the row table, composed by name.

    rows.py        the row table: every turn of a batch, in columns
    mix.py         reward components -> one reward per row
    returns.py     reward -> return
    groups.py      which rows are compared with each other, and what counts once
    normalise.py   baseline and scale of each group; what happens to a group of one
    estimator.py   `Advantage`: returns, groups and normalisation as one composition
    result.py      `Advantages`: what comes out, with everything that explains it
    algorithm.py   `Algorithm`: five names, its options, and `compute`
    statistics.py  per agent: shares of zero-variance groups and groups of one
    builtin.py     grpo, at-grpo

NumPy only, float64; no torch, ray or verl import.
"""

from marl_verl.advantage.algorithm import Algorithm
from marl_verl.advantage.estimator import Advantage
from marl_verl.advantage.mix import AlphaMix, Mix
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.rows import RowTable
from marl_verl.advantage.statistics import AgentStatistics, agent_statistics

__all__ = [
    "Advantage",
    "Advantages",
    "AgentStatistics",
    "Algorithm",
    "AlphaMix",
    "Mix",
    "RowTable",
    "agent_statistics",
]
