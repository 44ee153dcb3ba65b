"""Ways to sample a team: each drives runs of a workflow in its own manner."""

from marl_verl.sampling.base import Failure, Reason, Rollouts, Sample, Sampler, drive
from marl_verl.sampling.independent import Independent

__all__ = ["Failure", "Independent", "Reason", "Rollouts", "Sample", "Sampler", "drive"]
