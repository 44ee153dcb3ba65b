"""Ways to sample a team: each drives runs of a workflow in its own manner."""

from marl_verl.sampling.attempt import Failed, ask, attempt, scored, together
from marl_verl.sampling.base import Candidate, Failure, Reason, Rollouts, Sample, Sampler, drive
from marl_verl.sampling.independent import BestOf, Independent
from marl_verl.sampling.node import SESSION, State, Unfinished, check_restarted, grow, leaf_episode, root

__all__ = ["BestOf", "Candidate", "Failure", "Independent", "Reason", "Rollouts", "Sample", "Sampler"]
__all__ += ["Failed", "ask", "attempt", "drive", "scored", "together"]  # what a session, or a node, is made with
__all__ += ["SESSION", "State", "Unfinished", "check_restarted", "grow", "leaf_episode", "root"]  # trees
