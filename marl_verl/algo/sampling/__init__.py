"""Samplers, and the functions from which they are built."""

from marl_verl.algo.sampling.context import Candidate as Candidate
from marl_verl.algo.sampling.context import SamplingContext
from marl_verl.algo.sampling.node import (
    SESSION,
    PartialValue,
    State,
    check_restarted,
    expand,
    leaf_episode,
    reached,
    root,
    settled,
    transition,
)
from marl_verl.algo.sampling.sampler import (
    AttemptFailed,
    Failure,
    Independent,
    Sample,
    Sampler,
    ask,
    attempt,
    drive,
    gather_all,
    scored,
)
from marl_verl.algo.sampling.scoring import call_in_process

__all__ = ["Failure", "Independent", "Sample", "Sampler", "SamplingContext"]
__all__ += ["AttemptFailed", "ask", "attempt", "call_in_process", "drive", "gather_all", "scored"]  # for one attempt
__all__ += ["SESSION", "PartialValue", "State", "check_restarted", "expand", "leaf_episode", "reached", "root"]  # trees
__all__ += ["settled", "transition"]  # agents that are not explored
