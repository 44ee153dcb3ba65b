"""Ways to sample a team: each drives runs of a workflow in its own manner."""

from marl_verl.sampling.attempt import Failed, ask, attempt, scored
from marl_verl.sampling.base import Candidate, Failure, Reason, Rollouts, Sample, Sampler, drive
from marl_verl.sampling.independent import Independent

__all__ = [
    "Candidate",
    "Failed",
    "Failure",
    "Independent",
    "Reason",
    "Rollouts",
    "Sample",
    "Sampler",
    "ask",
    "attempt",
    "drive",
    "scored",
]
