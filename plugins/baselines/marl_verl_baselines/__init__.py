"""Algorithms to compare a team's training with, and their parts."""

from typing import TYPE_CHECKING

from marl_verl import lazy

if TYPE_CHECKING:
    from marl_verl_baselines.credits import C3, Efficiency, StepGroups
    from marl_verl_baselines.presets import Decoupled, Greedy, GroupInGroup
    from marl_verl_baselines.returns import GAE, PathSum, TreeMean
    from marl_verl_baselines.samplers import BestOf, GreedyBaseline

__all__ = ["C3", "GAE", "BestOf", "Decoupled", "Efficiency", "Greedy", "GreedyBaseline", "GroupInGroup"]
__all__ += ["PathSum", "StepGroups", "TreeMean"]

__getattr__ = lazy(__name__)  # listing plugins imports the package
