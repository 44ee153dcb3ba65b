"""Samplers, and the functions from which they are built."""

from marl_verl.algo.sampling.attempt import AttemptFailed, ask, attempt, gather_all, scored
from marl_verl.algo.sampling.base import Candidate, Failure, Sample
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.algo.sampling.independent import BestOf, GreedyBaseline, Independent
from marl_verl.algo.sampling.node import (
    SESSION,
    PartialValue,
    State,
    check_restarted,
    expand,
    leaf_episode,
    others,
    root,
    settled,
    transition,
    waiting_for,
)
from marl_verl.algo.sampling.sampler import Sampler, drive
from marl_verl.episode import Reason

__all__ = [
    "BestOf",
    "Candidate",
    "Failure",
    "GreedyBaseline",
    "Independent",
    "Reason",
    "SamplingContext",
    "Sample",
    "Sampler",
]
__all__ += [
    "AttemptFailed",
    "ask",
    "attempt",
    "drive",
    "scored",
    "gather_all",
]  # for one attempt
__all__ += ["SESSION", "State", "PartialValue", "check_restarted", "expand", "leaf_episode", "root"]  # trees
__all__ += ["others", "settled", "transition", "waiting_for"]  # agents that are not explored
