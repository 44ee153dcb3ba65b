"""Ways to sample a team: each drives runs of a workflow in its own manner."""

from marl_verl.sampling.attempt import Failed, ask, attempt, scored, together
from marl_verl.sampling.base import Candidate, Failure, Reason, Rollouts, Sample, Sampler, drive
from marl_verl.sampling.best_of import BestOf
from marl_verl.sampling.greedy_tree import GreedyTree
from marl_verl.sampling.independent import Independent
from marl_verl.sampling.joint_tree import JointTree
from marl_verl.sampling.tree_search import TreeSearch

__all__ = [
    "BestOf",
    "Candidate",
    "Failed",
    "Failure",
    "GreedyTree",
    "Independent",
    "JointTree",
    "Reason",
    "Rollouts",
    "Sample",
    "Sampler",
    "TreeSearch",
    "ask",
    "attempt",
    "drive",
    "scored",
    "together",
]
