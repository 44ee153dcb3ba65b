"""Ways to sample a team: each drives runs of a workflow in its own manner."""

from marl_verl.sampling.attempt import Failed, ask, attempt, scored, together
from marl_verl.sampling.base import Candidate, Failure, Reason, Rollouts, Sample, Sampler, drive
from marl_verl.sampling.best_of import BestOf
from marl_verl.sampling.independent import Independent
from marl_verl.sampling.node import SESSION, State, Unfinished, check_restarted, grow, leaf_episode, play_on, root

__all__ = [
    "BestOf",
    "Candidate",
    "Failed",
    "Failure",
    "Independent",
    "Reason",
    "Rollouts",
    "SESSION",
    "Sample",
    "Sampler",
    "State",
    "Unfinished",
    "ask",
    "attempt",
    "check_restarted",
    "drive",
    "grow",
    "leaf_episode",
    "play_on",
    "root",
    "scored",
    "together",
]
