"""Credit: how much of what a team earned one agent's turn earned.

base.py              `Credit`: what all of them are
table.py             `TableCredit`: a credit computed from the rows of a batch
replay.py            `ReplayCredit`: a credit found by replaying an episode
none.py              nobody's share is singled out
c3.py                a subtree against its siblings' subtrees
step_groups.py       a step against other steps from the same observation (GiGPO)
shapley.py           the Shapley value of a game, and leave-one-out

Credits that mask agents come with the plugin `marl-verl-sharp`.
"""

from marl_verl.credit.base import Credit
from marl_verl.credit.c3 import C3
from marl_verl.credit.none import NoCredit
from marl_verl.credit.replay import ReplayCredit
from marl_verl.credit.shapley import MOST_PLAYERS, coalitions, leave_one_out, shapley
from marl_verl.credit.step_groups import StepGroups
from marl_verl.credit.table import TableCredit

__all__ = [
    "C3",
    "Credit",
    "MOST_PLAYERS",
    "NoCredit",
    "ReplayCredit",
    "StepGroups",
    "TableCredit",
    "coalitions",
    "leave_one_out",
    "shapley",
]
