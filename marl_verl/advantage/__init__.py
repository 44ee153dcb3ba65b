"""From rewards to one advantage per row: small pure functions over the row table, composed by name.

    rows.py        the row table: every turn of a batch, in columns
    part.py        what parts have in common: a kind, a name, options
    returns.py     reward -> return
    gae.py         reward and a critic's values -> generalised advantage estimation
    tree.py        who is whose parent, for returns and credits over a tree
    overlong.py    a penalty for long responses
    groups.py      which rows are compared with each other, and what counts once
    baselines.py   what a return is compared with
    normalise.py   means and spreads; what happens to a group of one
    estimator.py   `Advantage`: all of these as one composition
    result.py      `Advantages`: what comes out, with everything that explains it
    statistics.py  per agent: rewards, shares of zero-variance groups and groups of one, ...

NumPy only, float64; no torch, ray or verl import. The methods themselves are in `marl_verl.algorithms`, table credits
in `marl_verl.credit`.
"""

from marl_verl.advantage.baselines import Baseline, LeaveOneOut, Max, Mean, NoBaseline
from marl_verl.advantage.estimator import Advantage, Estimator, GroupEstimator, Rows
from marl_verl.advantage.gae import GAE
from marl_verl.advantage.groups import (
    AGENT,
    BATCH,
    OBSERVATION,
    SIBLINGS,
    TASK,
    TURN,
    check_columns,
    combine,
    dense,
    group_ids,
    sample_ids,
)
from marl_verl.advantage.normalise import Population, Scale, Unbiased, group_mean
from marl_verl.advantage.overlong import Overlong
from marl_verl.advantage.part import Part, PartField
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.returns import Discounted, Immediate, PathSum, Returns, TreeMean
from marl_verl.advantage.rows import FloatArray, IntArray, RowTable
from marl_verl.advantage.statistics import AgentStatistics, agent_statistics

__all__ = [
    "AGENT",
    "Advantage",
    "Advantages",
    "AgentStatistics",
    "BATCH",
    "Baseline",
    "Discounted",
    "Estimator",
    "FloatArray",
    "GAE",
    "GroupEstimator",
    "Immediate",
    "IntArray",
    "LeaveOneOut",
    "Max",
    "Mean",
    "NoBaseline",
    "OBSERVATION",
    "Overlong",
    "Part",
    "PartField",
    "PathSum",
    "Population",
    "Returns",
    "RowTable",
    "Rows",
    "SIBLINGS",
    "Scale",
    "TASK",
    "TURN",
    "TreeMean",
    "Unbiased",
    "agent_statistics",
    "check_columns",
    "combine",
    "dense",
    "group_ids",
    "group_mean",
    "sample_ids",
]
