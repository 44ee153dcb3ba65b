"""Credit assignment: the contribution of one agent's turn to the team's reward."""

from marl_verl.algo.credit.base import ReplayCredit, TableCredit
from marl_verl.algo.credit.shapley import coalitions, shapley
from marl_verl.algo.credit.table import C3 as C3
from marl_verl.algo.credit.table import Efficiency as Efficiency
from marl_verl.algo.credit.table import StepGroups

__all__ = ["ReplayCredit", "StepGroups", "TableCredit", "coalitions", "shapley"]
