"""From rewards to one advantage per row: small pure functions over the row table, composed by name.

    rows.py        the row table: every turn of a batch, in columns
    part.py        what parts have in common: a kind, a name, options
    mix.py         reward components -> one reward per row
    returns.py     reward -> return
    gae.py         reward and a critic's values -> generalised advantage estimation
    tree.py        who is whose parent, for returns and credits over a tree
    overlong.py    a penalty for long responses
    groups.py      which rows are compared with each other, and what counts once
    baselines.py   what a return is compared with
    normalise.py   means and spreads; what happens to a group of one
    estimator.py   `Advantage`: all of these as one composition
    result.py      `Advantages`: what comes out, with everything that explains it
    algorithm.py   `Algorithm`: five names, its options, and `compute`
    statistics.py  per agent: rewards, shares of zero-variance groups and groups of one, ...

NumPy only, float64; no torch, ray or verl import. The methods themselves are in `marl_verl.algorithms`, table credits
in `marl_verl.credit`.
"""

from marl_verl.advantage.algorithm import Algorithm
from marl_verl.advantage.baselines import Baseline
from marl_verl.advantage.estimator import Advantage, Estimator
from marl_verl.advantage.mix import Mix, RewardMix
from marl_verl.advantage.normalise import Scale
from marl_verl.advantage.part import Part
from marl_verl.advantage.result import Advantages
from marl_verl.advantage.returns import Returns
from marl_verl.advantage.rows import RowTable
from marl_verl.advantage.statistics import AgentStatistics, agent_statistics

__all__ = [
    "Advantage",
    "Advantages",
    "AgentStatistics",
    "Algorithm",
    "Baseline",
    "Estimator",
    "Mix",
    "Part",
    "Returns",
    "RewardMix",
    "RowTable",
    "Scale",
    "agent_statistics",
]
